#pragma once
#include <string>
#include <vector>

namespace millrace {

// Trainers that should hold the same and do not: trainers t with equal t % groups form a group. Of each group those
// whose digest is not that of more than half; all of it where no more than half agree.
std::vector<int> outvoted(const std::vector<std::string>& digests, int groups = 1);

}  // namespace millrace
