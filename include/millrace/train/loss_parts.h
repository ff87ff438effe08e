#pragma once
#include <string>
#include <utility>
#include <vector>

namespace millrace {

// What a loss is the weighted sum of, by name, before the weights.
using LossParts = std::vector<std::pair<std::string, double>>;

}  // namespace millrace
