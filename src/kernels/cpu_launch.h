#pragma once
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "frame.h"

namespace millrace::kernels {

// For tests: threads and blocks in the opposite order. A kernel that lacks a barrier then gives other numbers.
inline bool cpu_runs_backwards = false;

class CpuBlock {
 public:
  CpuBlock(Grid place, Grid grid, int threads) : x(place.x), y(place.y), z(place.z), grid(grid), threads_(threads) {}

  template <class Phase>
  void phase(const Phase& run) {
    for (int i = 0; i < threads_; ++i) run(cpu_runs_backwards ? threads_ - 1 - i : i);
  }
  template <class T>
  std::vector<T> per_thread() const {
    return std::vector<T>(threads_);
  }
  // Each thread gets the sum over its warp: that of a butterfly, as on the GPU.
  void warp_sum(std::vector<float>& values) {
    for (int distance = warp_size / 2; distance > 0; distance /= 2) {
      const auto before = values;
      for (int thread = 0; thread < threads_; ++thread) values[thread] = before[thread] + before[thread ^ distance];
    }
  }

  const unsigned x, y, z;
  const Grid grid;

 private:
  int threads_;
};

struct CpuLauncher {
  template <class Kernel>
  void operator()(const Kernel& kernel, Grid grid) const {
    const auto shared = std::make_unique<typename Kernel::Shared>();
    const unsigned blocks = grid.x * grid.y * grid.z;
    for (unsigned i = 0; i < blocks; ++i) {
      std::memset(static_cast<void*>(shared.get()), 0xFF,
                  sizeof(typename Kernel::Shared));  // NaN, like a GPU's at worst
      const unsigned b = cpu_runs_backwards ? blocks - 1 - i : i;
      CpuBlock block({b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y}, grid, Kernel::threads);
      kernel(block, *shared);
    }
  }
};

}  // namespace millrace::kernels
