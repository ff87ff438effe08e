#pragma once
#include <string>
#include <vector>

namespace millrace {

// Trainers that should hold the same and do not.
struct Outvoted {
  std::vector<int> trainers;   // ascending
  bool is_by_majority = true;  // each is in the minority; else some of them may be right

  friend bool operator==(const Outvoted&, const Outvoted&) = default;
};

// Trainers t with equal t % groups form a group. Of each group those whose digest is not that of more than half; all of
// it where no more than half agree.
Outvoted outvoted(const std::vector<std::string>& digests, int groups = 1);

// Both, with each trainer once.
Outvoted merge(const Outvoted& one, const Outvoted& other);

}  // namespace millrace
