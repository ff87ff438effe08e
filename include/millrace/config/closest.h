#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace millrace::config {

// "; did you mean 'train'?" for the name in `known` that is nearly `name`; empty when none is.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

}  // namespace millrace::config
