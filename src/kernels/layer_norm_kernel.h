#pragma once
#include "columns.h"
#include "layer_norm.h"

namespace millrace::kernels {

// A warp per row.
struct RowOfWarp {
  static constexpr int threads = 128, rows = threads / warp_size;

  MILLRACE_HOST_DEVICE static std::int64_t row(unsigned block, int thread) {
    return std::int64_t{block} * rows + thread / warp_size;
  }
  // use(channel) for the columns of a lane; not for rows behind the last.
  template <int width, class Use>
  MILLRACE_HOST_DEVICE static void each_column(int thread, int channels, const Use& use) {
    for (int channel = thread % warp_size * width; channel < channels; channel += warp_size * width) use(channel);
  }
  static unsigned blocks(std::int64_t count) { return static_cast<unsigned>((count + rows - 1) / rows); }
};

// The first number of a row of s.
template <class T>
MILLRACE_HOST_DEVICE float first_of(const LayerNorm& a, std::int64_t row) {
  const std::int64_t at = row * a.channels;
  const float x = to_float(static_cast<const T*>(a.x)[at]);
  return a.residual == nullptr ? x : x + to_float(static_cast<const T*>(a.residual)[at]);
}

// For rows of any length: the second and third time that it goes through them they are in the cache.
template <class T, int width>
struct LayerNormKernel {
  static constexpr int threads = RowOfWarp::threads;
  using Shared = NoShared;
  LayerNorm arguments;

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared&) const {
    const auto& a = arguments;
    auto sums = block.template per_thread<float>();
    auto means = block.template per_thread<float>();
    block.phase([&](int thread) {
      const auto row = RowOfWarp::row(block.x, thread);
      sums[thread] = means[thread] = 0;
      if (row >= a.rows) return;
      const float center = first_of<T>(a, row);  // no digits are lost where the mean is large
      RowOfWarp::each_column<width>(thread, a.channels, [&](int channel) {
        float values[width];
        make_sum(row * a.channels + channel, values);
        for (const float value : values) sums[thread] += value - center;
      });
      means[thread] = center;
    });
    block.warp_sum(sums);
    block.phase([&](int thread) {
      const auto row = RowOfWarp::row(block.x, thread);
      const float mean = means[thread] + sums[thread] / static_cast<float>(a.channels);
      sums[thread] = 0;
      means[thread] = mean;
      if (row >= a.rows) return;
      RowOfWarp::each_column<width>(thread, a.channels, [&](int channel) {
        float values[width];
        load(normalized() + row * a.channels + channel, values);
        for (const float value : values) sums[thread] += (value - mean) * (value - mean);
      });
    });
    block.warp_sum(sums);
    block.phase([&](int thread) {
      const auto row = RowOfWarp::row(block.x, thread);
      if (row >= a.rows) return;
      const float mean = means[thread];
      const float rstd = 1 / sqrtf(sums[thread] / static_cast<float>(a.channels) + a.eps);
      if (thread % warp_size == 0) a.mean[row] = mean, a.rstd[row] = rstd;
      RowOfWarp::each_column<width>(thread, a.channels, [&](int channel) {
        float values[width], gamma[width], beta[width];
        load(normalized() + row * a.channels + channel, values);
        a.gamma.read(channel, gamma);
        a.beta.read(channel, beta);
        for (int i = 0; i < width; ++i) values[i] = (values[i] - mean) * rstd * gamma[i] + beta[i];
        store(static_cast<T*>(a.y) + row * a.channels + channel, values);
      });
    });
  }

  MILLRACE_HOST_DEVICE const T* normalized() const {
    return static_cast<const T*>(arguments.residual != nullptr ? arguments.sum : arguments.x);
  }
  // The values of s, rounded as it is stored.
  MILLRACE_HOST_DEVICE void make_sum(std::int64_t at, float (&values)[width]) const {
    load(static_cast<const T*>(arguments.x) + at, values);
    if (arguments.residual == nullptr) return;
    float others[width];
    load(static_cast<const T*>(arguments.residual) + at, others);
    for (int i = 0; i < width; ++i) values[i] += others[i];
    store(static_cast<T*>(arguments.sum) + at, values);
    load(static_cast<const T*>(arguments.sum) + at, values);
  }
};

// The same, with rows of up to `packs` * warp_size * width channels in registers.
template <class T, int width, int packs>
struct ShortLayerNormKernel {
  static constexpr int threads = RowOfWarp::threads;
  using Shared = NoShared;
  LayerNorm arguments;

  struct Lane {
    Pack<T, width> s[packs];
    std::int64_t row;
    float mean;
  };

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared&) const {
    const auto& a = arguments;
    auto lanes = block.template per_thread<Lane>();
    auto sums = block.template per_thread<float>();
    block.phase([&](int thread) {
      Lane& lane = lanes[thread];
      lane.row = RowOfWarp::row(block.x, thread);
      sums[thread] = lane.mean = 0;
      if (lane.row >= a.rows) return;
      read(thread, lane);
      lane.mean = first_of<T>(a, lane.row);  // near it: no digits are lost where it is large
      each_pack(thread, [&](int i, int) {
        float values[width];
        unpack(lane.s[i], values);
        for (const float value : values) sums[thread] += value - lane.mean;
      });
    });
    block.warp_sum(sums);
    block.phase([&](int thread) {
      Lane& lane = lanes[thread];
      lane.mean += sums[thread] / static_cast<float>(a.channels);
      sums[thread] = 0;
      if (lane.row >= a.rows) return;
      each_pack(thread, [&](int i, int) {
        float values[width];
        unpack(lane.s[i], values);
        for (const float value : values) sums[thread] += (value - lane.mean) * (value - lane.mean);
      });
    });
    block.warp_sum(sums);
    block.phase([&](int thread) {
      const Lane& lane = lanes[thread];
      if (lane.row >= a.rows) return;
      const float rstd = 1 / sqrtf(sums[thread] / static_cast<float>(a.channels) + a.eps);
      if (thread % warp_size == 0) a.mean[lane.row] = lane.mean, a.rstd[lane.row] = rstd;
      each_pack(thread, [&](int i, int channel) {
        float values[width], gamma[width], beta[width];
        unpack(lane.s[i], values);
        a.gamma.read(channel, gamma);
        a.beta.read(channel, beta);
        for (int k = 0; k < width; ++k) values[k] = (values[k] - lane.mean) * rstd * gamma[k] + beta[k];
        store(static_cast<T*>(a.y) + lane.row * a.channels + channel, values);
      });
    });
  }

  // use(index of the pack, first channel) for the packs of a lane.
  template <class Use>
  MILLRACE_HOST_DEVICE void each_pack(int thread, const Use& use) const {
    MILLRACE_UNROLL_ALL
    for (int i = 0; i < packs; ++i) {
      const int channel = (thread % warp_size + i * warp_size) * width;
      if (channel < arguments.channels) use(i, channel);
    }
  }
  // s, rounded as it is stored; all loads come first.
  MILLRACE_HOST_DEVICE void read(int thread, Lane& lane) const {
    const std::int64_t begin = lane.row * arguments.channels;
    const auto* residual = static_cast<const T*>(arguments.residual);
    Pack<T, width> others[packs];
    each_pack(thread, [&](int i, int channel) {
      lane.s[i] = load_pack<width>(static_cast<const T*>(arguments.x) + begin + channel);
      if (residual != nullptr) others[i] = load_pack<width>(residual + begin + channel);
    });
    if (residual == nullptr) return;
    each_pack(thread, [&](int i, int channel) {
      float values[width], other[width];
      unpack(lane.s[i], values);
      unpack(others[i], other);
      for (int k = 0; k < width; ++k) assign(lane.s[i].values[k], values[k] + other[k]);
      *reinterpret_cast<Pack<T, width>*>(static_cast<T*>(arguments.sum) + begin + channel) = lane.s[i];
    });
  }
};

// With z = (s - mean) rstd, g = gamma dy: dx = rstd (g - mean(g) - z mean(g z)) + ds.
template <class T, int width>
struct LayerNormInputGradientKernel {
  static constexpr int threads = RowOfWarp::threads;
  using Shared = NoShared;
  LayerNormBackward arguments;

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared&) const {
    const auto& a = arguments;
    auto sums1 = block.template per_thread<float>();
    auto sums2 = block.template per_thread<float>();
    block.phase([&](int thread) {
      const auto row = RowOfWarp::row(block.x, thread);
      sums1[thread] = sums2[thread] = 0;
      if (row >= a.rows) return;
      RowOfWarp::each_column<width>(thread, a.channels, [&](int channel) {
        float z[width], g[width];
        read(row, channel, z, g);
        for (int i = 0; i < width; ++i) sums1[thread] += g[i], sums2[thread] += g[i] * z[i];
      });
    });
    block.warp_sum(sums1);
    block.warp_sum(sums2);
    block.phase([&](int thread) {
      const auto row = RowOfWarp::row(block.x, thread);
      if (row >= a.rows) return;
      const auto count = static_cast<float>(a.channels);
      const float mean1 = sums1[thread] / count, mean2 = sums2[thread] / count, rstd = a.rstd[row];
      RowOfWarp::each_column<width>(thread, a.channels, [&](int channel) {
        const std::int64_t at = row * a.channels + channel;
        float z[width], g[width], other[width] = {};
        read(row, channel, z, g);
        if (a.s_grad != nullptr) load(static_cast<const T*>(a.s_grad) + at, other);
        for (int i = 0; i < width; ++i) g[i] = rstd * (g[i] - mean1 - z[i] * mean2) + other[i];
        store(static_cast<T*>(a.x_grad) + at, g);
      });
    });
  }

  MILLRACE_HOST_DEVICE void read(std::int64_t row, int channel, float (&z)[width], float (&g)[width]) const {
    const auto& a = arguments;
    float gamma[width];
    load(static_cast<const T*>(a.s) + row * a.channels + channel, z);
    load(static_cast<const T*>(a.y_grad) + row * a.channels + channel, g);
    a.gamma.read(channel, gamma);
    for (int i = 0; i < width; ++i) {
      z[i] = (z[i] - a.mean[row]) * a.rstd[row];
      g[i] *= gamma[i];
    }
  }
};

// Sums over the rows of a split of dy z and dy: (2, splits, C).
template <class T, int width>
struct LayerNormParameterGradientKernel {
  static constexpr int threads = Columns::threads;
  using Shared = ColumnSums<2, width>;
  LayerNormBackward arguments;
  Columns columns;

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    block.phase([&](int thread) {
      const auto place = columns.place<width>(block.x, block.y, thread);
      float sums[2][width] = {};
      if (place.first < place.last) add_rows(place, sums);
      shared.leave(thread, sums);
    });
    float* gamma_partials = static_cast<float*>(arguments.workspace) + std::int64_t{block.x} * columns.channels;
    float* beta_partials = gamma_partials + std::int64_t{columns.splits} * columns.channels;
    shared.finish(block, columns, [&](int channel, const float(&sums)[2]) {
      gamma_partials[channel] = sums[0];
      beta_partials[channel] = sums[1];
    });
  }

  MILLRACE_HOST_DEVICE void add_rows(const Columns::Place& place, float (&sums)[2][width]) const {
    const auto& a = arguments;
    MILLRACE_UNROLL_ROWS
    for (std::int64_t row = place.first; row < place.last; row += columns.row_step) {
      float values[width], gradients[width];
      load(static_cast<const T*>(a.s) + row * a.channels + place.channel, values);
      load(static_cast<const T*>(a.y_grad) + row * a.channels + place.channel, gradients);
      const float mean = a.mean[row], rstd = a.rstd[row];
      for (int i = 0; i < width; ++i) {
        sums[0][i] += gradients[i] * ((values[i] - mean) * rstd);
        sums[1][i] += gradients[i];
      }
    }
  }
};

template <class T, int width, class Launcher>
void launch_layer_norm_backward_of(const LayerNormBackward& a, const Launcher& launch) {
  launch(LayerNormInputGradientKernel<T, width>{a}, {RowOfWarp::blocks(a.rows)});
  if (a.gamma_grad.data == nullptr && a.beta_grad.data == nullptr) return;
  const auto sums = plan_columns(a.rows, a.channels, width, 1, blocks_of_sums);
  launch(LayerNormParameterGradientKernel<T, width>{a, sums}, grid_of(sums));
  const auto* partials = static_cast<const float*>(a.workspace);
  sum_rows({{partials, a.gamma_grad}, {partials + std::int64_t{sums.splits} * a.channels, a.beta_grad}}, sums.splits,
           a.channels, launch);
}

template <class Launcher>
void launch_kernels(const LayerNorm& a, const Launcher& launch) {
  with_type(a.element, [&](auto zero) {
    using T = decltype(zero);
    const bool aligned = is_aligned(a.x) && is_aligned(a.residual) && is_aligned(a.sum) && is_aligned(a.y) &&
                         is_aligned(a.gamma.data) && is_aligned(a.beta.data);
    constexpr int width = full_width<T>;
    const int packs = (a.channels + warp_size * width - 1) / (warp_size * width);
    const Grid grid{RowOfWarp::blocks(a.rows)};
    if (a.channels % width != 0 || !aligned) {
      launch(LayerNormKernel<T, 1>{a}, grid);
    } else if (packs <= 2) {
      launch(ShortLayerNormKernel<T, width, 2>{a}, grid);
    } else if (packs == 3) {
      launch(ShortLayerNormKernel<T, width, 3>{a}, grid);
    } else if (packs <= 5) {
      launch(ShortLayerNormKernel<T, width, 5>{a}, grid);
    } else {
      launch(LayerNormKernel<T, width>{a}, grid);
    }
  });
}

template <class Launcher>
void launch_kernels(const LayerNormBackward& a, const Launcher& launch) {
  with_type_and_width(
      a.element, a.channels, {a.s, a.y_grad, a.s_grad, a.x_grad, a.gamma.data},
      [&](auto zero, auto width) { launch_layer_norm_backward_of<decltype(zero), decltype(width)::value>(a, launch); });
}

}  // namespace millrace::kernels
