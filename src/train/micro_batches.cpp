#include "micro_batches.h"

#include <algorithm>

namespace millrace {

std::int64_t count_micro_batches(std::int64_t samples, std::int64_t micro) {
  return (samples + micro - 1) / micro;
}

std::vector<MicroBatch> micro_batches_of(std::int64_t samples, std::int64_t micro, std::int64_t turns) {
  const auto own_turns = count_micro_batches(samples, micro);
  std::vector<MicroBatch> micro_batches;
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    const auto begin = micro * std::min(turn, own_turns - 1);
    micro_batches.push_back({begin, std::min(begin + micro, samples), turn >= own_turns});
  }
  return micro_batches;
}

}  // namespace millrace
