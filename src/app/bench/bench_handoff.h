#pragma once
#include <cstddef>
#include <vector>

#include "millrace/comm/group.h"

namespace millrace {

struct HandoffBench {
  std::size_t parcel_bytes =
      64 * (16384 + 157696);  // 64 images at 256 px with SD 2: moments and text in half precision
  int parcels = 100;          // per run
  int runs = 5;               // after one warm-up run
  int slots = 4;
};

// Sends parcels from the odd ranks of `group` to the even ranks before them, or between two threads in a group of one.
// Bytes per second over all pairs, one number per run, the same on every rank. Every parcel is checked to be the next
// one, whole.
std::vector<double> bench_handoff(const Group& group, const HandoffBench& bench);

}  // namespace millrace
