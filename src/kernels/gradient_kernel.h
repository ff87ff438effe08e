#pragma once
#include "columns.h"
#include "flat.h"
#include "gradient.h"

namespace millrace::kernels {

template <class T, bool aligned>
struct SumGradientKernel {
  static constexpr int threads = flat::threads;
  static constexpr std::int64_t most_blocks = 1 << 20;
  using Shared = NoShared;
  SumGradient arguments;

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.phase([&](int thread) {
      const std::int64_t n = arguments.n, packs = n / flat::width;
      const std::int64_t stride = static_cast<std::int64_t>(block.grid.x) * threads;
      const auto* gradient = static_cast<const T*>(arguments.gradient.data);
      for (std::int64_t pack = block.x * std::int64_t{threads} + thread; pack < packs; pack += stride) {
        const std::int64_t at = pack * flat::width;
        float values[flat::width], sums[flat::width] = {};
        flat::load_some<aligned>(gradient + at, values);
        if (!arguments.replaces) flat::load_some<aligned>(arguments.sum + at, sums);
        for (int i = 0; i < flat::width; ++i) values[i] += sums[i];
        flat::store_some<aligned>(arguments.sum + at, values);
      }
      const std::int64_t tail = packs * flat::width + thread;
      if (block.x != 0 || tail >= n) return;
      arguments.sum[tail] = to_float(gradient[tail]) + (arguments.replaces ? 0 : arguments.sum[tail]);
    });
  }
};

template <class Launcher>
void launch_kernels(const SumGradient& a, const Launcher& launch) {
  with_type(a.gradient.element, [&](auto zero) {
    using T = decltype(zero);
    const Grid grid{flat::blocks(a.n, SumGradientKernel<T, true>::most_blocks)};
    if (is_aligned(a.gradient.data) && is_aligned(a.sum)) {
      launch(SumGradientKernel<T, true>{a}, grid);
    } else {
      launch(SumGradientKernel<T, false>{a}, grid);
    }
  });
}

}  // namespace millrace::kernels
