#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "millrace/config/config.h"
#include "yaml.h"

namespace millrace::config {

inline constexpr const char* override_origin = "override";
// Also of what a variable gave that was named there: "env VAR (override)".
bool is_of_override(std::string_view origin);

// "a.b=value" as the tree {a: {b: value}}. The key's Syntax decides how the value is read; in lists, commas inside
// braces, brackets and quotes do not split.
Node parse_override(const Section& schema, const std::string& text, std::vector<Problem>& problems);

}  // namespace millrace::config
