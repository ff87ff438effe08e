#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/config/node.h"

// YAML and JSON text on one side, Node trees on the other.
namespace millrace::config {

struct Problem {
  std::string origin, text;
};

// The inside of 'text' or "text".
std::optional<std::string_view> unquoted(std::string_view text);

// More values than any configuration has: what anchors or references that multiply each other would grow into.
inline constexpr std::size_t max_nodes = 100'000;
std::size_t count_nodes(const Node& node);

// Origins are "SOURCE:LINE", or `source` alone where lines mean nothing (`with_lines` false). Syntax errors and
// duplicate keys are added to `problems`; what could be read is returned.
Node parse_yaml(std::string text, const std::string& source, bool with_lines, std::vector<Problem>& problems);

// Block style, one key a line; `with_origins` adds each value's origin as a comment.
std::string emit_yaml(const Node& node, bool with_origins);
// The same on one line, for messages and tables.
std::string emit_flow(const Node& node);
std::string emit_json(const Node& node);

}  // namespace millrace::config
