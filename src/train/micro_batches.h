#pragma once
#include <cstdint>
#include <vector>

namespace millrace {

// What a trainer takes of its samples in one turn.
struct MicroBatch {
  std::int64_t begin = 0, end = 0;
  bool is_extra = false;
};

std::int64_t count_micro_batches(std::int64_t samples, std::int64_t micro);

// Trainers may have different numbers of micro-batches. Where a turn is collective all take as many `turns` as the one
// with most; what is extra repeats the last one and does not count.
std::vector<MicroBatch> micro_batches_of(std::int64_t samples, std::int64_t micro, std::int64_t turns);

}  // namespace millrace
