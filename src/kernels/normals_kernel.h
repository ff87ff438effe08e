#pragma once
#include <algorithm>
#include <cmath>

#include "frame.h"
#include "millrace/core/philox_math.h"
#include "normals.h"

namespace millrace::kernels {

// A thread makes the four numbers of one Philox block at a time.
struct NormalsKernel {
  static constexpr int threads = 256, width = 4;
  static constexpr std::int64_t most_blocks = 1024;
  using Shared = NoShared;

  Normals arguments;

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.phase([&](int thread) {
      const std::int64_t blocks_of_row = (arguments.per_row + width - 1) / width;
      const std::int64_t stride = static_cast<std::int64_t>(block.grid.x) * threads;
      for (std::int64_t i = block.x * std::int64_t{threads} + thread; i < blocks_of_row; i += stride)
        make_four(block.y, static_cast<std::uint32_t>(i));
    });
  }

  MILLRACE_HOST_DEVICE void make_four(unsigned row, std::uint32_t philox_block) const {
    const std::int32_t* words = arguments.words + row * std::int64_t{words_per_row};
    std::uint32_t c[4] = {philox_block, static_cast<std::uint32_t>(words[2]), static_cast<std::uint32_t>(words[3]),
                          static_cast<std::uint32_t>(words[4])};
    philox_math::rounds(c[0], c[1], c[2], c[3], static_cast<std::uint32_t>(words[0]),
                        static_cast<std::uint32_t>(words[1]));
    const std::int64_t first = philox_block * std::int64_t{width};
    float* out = arguments.out + row * arguments.per_row + first;
    for (int pair = 0; pair < width; pair += 2) {
      const float radius = sqrtf(philox_math::squared_radius(c[pair]));
      float cosine, sine;
      philox_math::cos_sin_turn(c[pair + 1], cosine, sine);
      if (first + pair < arguments.per_row) out[pair] = radius * cosine;
      if (first + pair + 1 < arguments.per_row) out[pair + 1] = radius * sine;
    }
  }
};

template <class Launcher>
void launch_kernels(const Normals& arguments, const Launcher& launch) {
  const std::int64_t per_block = NormalsKernel::threads * NormalsKernel::width;
  const auto blocks =
      std::clamp<std::int64_t>((arguments.per_row + per_block - 1) / per_block, 1, NormalsKernel::most_blocks);
  launch(NormalsKernel{arguments}, Grid{static_cast<unsigned>(blocks), static_cast<unsigned>(arguments.rows)});
}

}  // namespace millrace::kernels
