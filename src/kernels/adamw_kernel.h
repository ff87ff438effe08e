#pragma once
#include <algorithm>

#include "adamw.h"
#include "flat.h"
#include "frame.h"

namespace millrace::kernels {

template <class T, bool aligned>
struct SquareSumKernel {
  static constexpr int threads = flat::threads;
  struct Shared {
    double sums[threads];
  };
  const T* gradient;
  std::int64_t n;
  double* partials;  // one per block

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    block.phase([&](int thread) {
      const std::int64_t packs = n / flat::width, stride = static_cast<std::int64_t>(block.grid.x) * threads;
      double sum = 0;
      for (std::int64_t pack = block.x * std::int64_t{threads} + thread; pack < packs; pack += stride) {
        float values[flat::width];
        flat::load_some<aligned>(gradient + pack * flat::width, values);
        for (const float value : values) sum += static_cast<double>(value) * value;
      }
      const std::int64_t tail = packs * flat::width + thread;
      if (block.x == 0 && tail < n) sum += static_cast<double>(to_float(gradient[tail])) * to_float(gradient[tail]);
      shared.sums[thread] = sum;
    });
    fold(block, shared.sums);
    block.phase([&](int thread) {
      if (thread == 0) partials[block.x] = shared.sums[0];
    });
  }
};

struct SumOfPartials {
  static constexpr int threads = 256;
  struct Shared {
    double sums[threads];
  };
  const double* partials;
  int count;
  double* sum;

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    block.phase([&](int thread) {
      shared.sums[thread] = 0;
      for (int i = thread; i < count; i += threads) shared.sums[thread] += partials[i];
    });
    fold(block, shared.sums);
    block.phase([&](int thread) {
      if (thread == 0) *sum = shared.sums[0];
    });
  }
};

template <class Launcher>
void launch_kernels(const SquareSum& a, const Launcher& launch) {
  const auto blocks = flat::blocks(a.n, square_sum_partials);
  with_type(a.gradient.element, [&](auto zero) {
    using T = decltype(zero);
    const auto* gradient = static_cast<const T*>(a.gradient.data);
    if (is_aligned(gradient)) {
      launch(SquareSumKernel<T, true>{gradient, a.n, a.partials}, {blocks});
    } else {
      launch(SquareSumKernel<T, false>{gradient, a.n, a.partials}, {blocks});
    }
  });
  launch(SumOfPartials{a.partials, static_cast<int>(blocks), a.sum}, {1});
}

template <class T, bool aligned>
struct AdamwKernel {
  static constexpr int threads = flat::threads;
  using Shared = NoShared;
  Adamw arguments;

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.phase([&](int thread) {
      const AdamwStep step = arguments.step;  // beside what is written, it would be read again for every element
      const std::int64_t packs = aligned ? arguments.n / flat::width : 0;
      const std::int64_t stride = static_cast<std::int64_t>(block.grid.x) * threads;
      const std::int64_t first = block.x * std::int64_t{threads} + thread;
      for (std::int64_t pack = first; pack < packs; pack += stride) update<flat::width>(pack * flat::width, step);
      for (std::int64_t at = packs * flat::width + first; at < arguments.n; at += stride) update<1>(at, step);
    });
  }

  // Of the elements from `at`.
  template <int width>
  MILLRACE_HOST_DEVICE void update(std::int64_t at, const AdamwStep& s) const {
    float gradient[width], weights[width], exp_avg[width], exp_avg_sq[width], ema[width] = {};
    load(static_cast<const T*>(arguments.gradient.data) + at, gradient);
    load(arguments.weights + at, weights);
    load(arguments.exp_avg + at, exp_avg);
    load(arguments.exp_avg_sq + at, exp_avg_sq);
    if (arguments.ema != nullptr) load(arguments.ema + at, ema);
    for (int i = 0; i < width; ++i) {
      const float g = gradient[i] * s.gradient_factor;
      exp_avg[i] = s.beta1 * exp_avg[i] + s.one_minus_beta1 * g;
      exp_avg_sq[i] = s.beta2 * exp_avg_sq[i] + s.one_minus_beta2 * g * g;
      const float denominator = sqrtf(exp_avg_sq[i]) * s.inverse_root + s.eps;
      weights[i] = s.decay * weights[i] - s.step_size * exp_avg[i] / denominator;
    }
    store(arguments.weights + at, weights);
    store(arguments.exp_avg + at, exp_avg);
    store(arguments.exp_avg_sq + at, exp_avg_sq);
    if (arguments.published.data != nullptr) arguments.published.write(at, weights);
    if (arguments.ema == nullptr) return;
    for (int i = 0; i < width; ++i) ema[i] += s.ema_weight * (weights[i] - ema[i]);
    store(arguments.ema + at, ema);
  }
};

template <class Launcher>
void launch_kernels(const Adamw& a, const Launcher& launch) {
  constexpr std::int64_t most_blocks = 4096;
  const bool aligned = is_aligned(a.gradient.data) && is_aligned(a.weights) && is_aligned(a.exp_avg) &&
                       is_aligned(a.exp_avg_sq) && is_aligned(a.ema) && is_aligned(a.published.data);
  const auto blocks = flat::blocks(a.n, most_blocks);
  const auto launch_for = [&](auto zero) {
    using T = decltype(zero);
    if (aligned) {
      launch(AdamwKernel<T, true>{a}, {blocks});
    } else {
      launch(AdamwKernel<T, false>{a}, {blocks});
    }
  };
  with_type(a.gradient.element, launch_for);
}

}  // namespace millrace::kernels
