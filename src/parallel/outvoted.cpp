#include "millrace/parallel/outvoted.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace millrace {

Outvoted outvoted(const std::vector<std::string>& digests, int groups) {
  const auto trainers = static_cast<int>(digests.size());
  Outvoted result;
  for (int group = 0; group < groups; ++group) {
    std::map<std::string, int> votes;
    for (int trainer = group; trainer < trainers; trainer += groups) ++votes[digests[trainer]];
    const auto most = std::ranges::max_element(votes, {}, [](const auto& entry) { return entry.second; });
    const bool is_majority = 2 * most->second > trainers / groups;
    if (!is_majority) result.is_by_majority = false;
    for (int trainer = group; trainer < trainers; trainer += groups)
      if (!is_majority || digests[trainer] != most->first) result.trainers.push_back(trainer);
  }
  std::ranges::sort(result.trainers);
  return result;
}

Outvoted merge(const Outvoted& one, const Outvoted& other) {
  Outvoted both{{}, one.is_by_majority && other.is_by_majority};
  std::ranges::set_union(one.trainers, other.trainers, std::back_inserter(both.trainers));
  return both;
}

}  // namespace millrace
