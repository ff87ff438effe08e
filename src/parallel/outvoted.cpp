#include "outvoted.h"

#include <algorithm>
#include <map>

namespace millrace {

std::vector<int> outvoted(const std::vector<std::string>& digests, int groups) {
  const auto trainers = static_cast<int>(digests.size());
  std::vector<int> differing;
  for (int group = 0; group < groups; ++group) {
    std::map<std::string, int> votes;
    for (int trainer = group; trainer < trainers; trainer += groups) ++votes[digests[trainer]];
    const auto most = std::ranges::max_element(votes, {}, [](const auto& entry) { return entry.second; });
    const bool is_majority = 2 * most->second > trainers / groups;
    for (int trainer = group; trainer < trainers; trainer += groups)
      if (!is_majority || digests[trainer] != most->first) differing.push_back(trainer);
  }
  std::ranges::sort(differing);
  return differing;
}

}  // namespace millrace
