#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace millrace::config {

// The name in `known` that is nearly `name`; empty when none is.
std::string closest(std::string_view name, const std::vector<std::string>& known);
// "; did you mean 'train'?", or empty.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

}  // namespace millrace::config
