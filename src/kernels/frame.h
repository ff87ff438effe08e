#pragma once
#include "millrace/core/host_device.h"

// NOTE [Kernels as phases]
// A kernel is a struct of its arguments with `threads`, the size of a block; `Shared`, what a block shares; and
//     template <class Block> void operator()(Block& block, Shared& shared) const
// which goes through phases: block.phase(f) runs f(thread) for all threads of the block, and a barrier follows. What a
// thread keeps from one phase to the next is in block.per_thread<T>(). A GPU runs the threads of a phase at once
// (cuda_launch.h), the host one after the other (cpu_launch.h): the same text with the same indices, so that sanitizers
// on the host see each access. What launches which kernels over which grid is a template over the launcher, and the
// same for both.
namespace millrace::kernels {

inline constexpr int warp_size = 32;

struct Grid {
  unsigned x = 1;
  unsigned y = 1, z = 1;  // at most 65535
};

struct NoShared {};

// values[i] becomes the sum of all values[i + n * kept], in a fixed order; `threads` and `kept` are powers of two.
template <int kept = 1, class Block, class T, int threads>
MILLRACE_HOST_DEVICE void fold(Block& block, T (&values)[threads]) {
  for (int half = threads / 2; half >= kept; half /= 2) {
    block.phase([&](int thread) {
      if (thread < half) values[thread] += values[thread + half];
    });
  }
}

}  // namespace millrace::kernels
