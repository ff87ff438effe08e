#pragma once
#include <string>
#include <vector>

namespace millrace {

// Trainers whose data differ although they should be equal.
struct Outvoted {
  std::vector<int> trainers;   // ascending
  bool is_by_majority = true;  // each is in the minority; else some of them may be right

  friend bool operator==(const Outvoted&, const Outvoted&) = default;
};

// Trainers t with equal t % groups form a group, which should agree. Returns those of each group whose digest is not
// that of more than half of it; the whole group if no digest has a majority.
Outvoted outvoted(const std::vector<std::string>& digests, int groups = 1);

// The union of both, each trainer once.
Outvoted merge(const Outvoted& one, const Outvoted& other);

}  // namespace millrace
