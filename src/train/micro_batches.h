#pragma once
#include <cstdint>
#include <vector>

namespace millrace {

// Samples [begin, end) of a trainer's local batch.
struct MicroBatch {
  std::int64_t begin = 0, end = 0;
  bool is_extra = false;
};

std::int64_t count_micro_batches(std::int64_t samples, std::int64_t micro);

// Trainers may have different numbers of micro-batches. Where passes are collective all make as many, `turns`, as the
// trainer with the most; extra ones repeat the last micro-batch and do not count.
std::vector<MicroBatch> micro_batches_of(std::int64_t samples, std::int64_t micro, std::int64_t turns);

}  // namespace millrace
