#pragma once
#include <string>
#include <utility>
#include <vector>

namespace millrace {

// The terms of a loss by name, before they are weighted; the loss is their weighted sum.
using LossParts = std::vector<std::pair<std::string, double>>;

}  // namespace millrace
