#pragma once
#include <algorithm>

#include "columns.h"
#include "group_norm_silu.h"
#include "scalar_math.h"

// Forward: sums of each channel over splits of the pixels -> statistics of the groups -> y, in two passes over x.
// Backward: the same with the sums of the gradients. Between the passes small kernels fold the splits; what they find
// out is spread to one number per image and channel, so that the passes know nothing of groups, whose borders lie
// anywhere in a vector of 8 channels.
namespace millrace::kernels {

// v = (x - shift) scale + beta, each (B, C): shift = mean - time - x_bias, scale = rstd gamma.
struct Normalization {
  float *shift, *scale, *beta;
};

// (B, splits, C) each. Forward: mean of a channel over a split, sum of squared deviations from it. Backward: sums of
// dv, dv (x - shift) and x - shift.
struct ChannelPartials {
  float* of[3];
};

// What the pointer `workspace` is cut into.
struct GroupNormWorkspace {
  Normalization normalization;
  ChannelPartials partials;
  // (B, C): over the pixels, of dv, of dv times the normalized x, and of x - shift.
  float *dv_sums, *dv_x_sums, *deviation_sums;
  float *x_factor, *offset;  // (B, C), dx = dv scale + (x - shift) x_factor + offset
  float* dx_sums;            // (B, C), over the pixels
};

inline std::int64_t floats_of_workspace(const GroupNormShape& shape) {
  return shape.batch * shape.channels * (9 + 3 * most_splits(shape.pixels, shape.channels, shape.batch));
}

inline GroupNormWorkspace cut_workspace(const GroupNormShape& shape, void* workspace) {
  auto* next = static_cast<float*>(workspace);
  const auto take = [&](std::int64_t rows) {
    auto* taken = next;
    next += rows * shape.batch * shape.channels;
    return taken;
  };
  const auto splits = most_splits(shape.pixels, shape.channels, shape.batch);
  return {{take(1), take(1), take(1)},
          {{take(splits), take(splits), take(splits)}},
          take(1),
          take(1),
          take(1),
          take(1),
          take(1),
          take(1)};
}

template <class T, int width>
struct MomentsKernel {
  static constexpr int threads = Columns::threads;
  using Shared = ColumnSums<2, width>;
  const T* x;
  Columns columns;
  ChannelPartials partials;

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    const T* image = x + block.z * columns.rows * columns.channels;
    const T* origin = image + block.x * columns.rows_per_split * columns.channels;  // the split's first pixel
    block.phase([&](int thread) {
      const auto place = columns.place<width>(block.x, block.y, thread);
      float sums[2][width] = {};
      if (place.first < place.last) add_pixels(image, origin, place, sums);
      shared.leave(thread, sums);
    });
    const std::int64_t begin = block.x * columns.rows_per_split;
    const std::int64_t rest = columns.rows - begin;
    const auto count = static_cast<float>(rest < columns.rows_per_split ? rest : columns.rows_per_split);
    const std::int64_t row = (std::int64_t{block.z} * columns.splits + block.x) * columns.channels;
    shared.finish(block, columns, [&](int channel, const float(&sums)[2]) {
      const float mean = sums[0] / count, squares = sums[1] - sums[0] * mean;
      partials.of[0][row + channel] = to_float(origin[channel]) + mean;
      partials.of[1][row + channel] = squares < 0 ? 0 : squares;  // NaN stays
    });
  }

  // Sums of x - origin and of its square.
  MILLRACE_HOST_DEVICE void add_pixels(const T* image, const T* origin, const Columns::Place& place,
                                       float (&sums)[2][width]) const {
    float center[width];
    load(origin + place.channel, center);
    MILLRACE_UNROLL_ROWS
    for (std::int64_t row = place.first; row < place.last; row += columns.row_step) {
      float values[width];
      load(image + row * columns.channels + place.channel, values);
      for (int i = 0; i < width; ++i) {
        const float deviation = values[i] - center[i];
        sums[0][i] += deviation;
        sums[1][i] += deviation * deviation;
      }
    }
  }
};

MILLRACE_HOST_DEVICE inline void write_normalization(const Normalization& to, std::int64_t at, float mean, float rstd,
                                                     float moved_by, float gamma, float beta) {
  to.shift[at] = mean - moved_by;
  to.scale[at] = rstd * gamma;
  to.beta[at] = beta;
}

// Mean and rstd of a group from the moments of its channels in the splits, each (b, c) moved by its addend. Grid
// (groups, B).
struct StatisticsKernel {
  static constexpr int threads = 128;
  struct Shared {
    float sums[threads];
    float mean, rstd;
  };
  GroupNormSilu arguments;
  Columns columns;
  ChannelPartials partials;
  Normalization normalization;

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    const auto& shape = arguments.shape;
    const int group = static_cast<int>(block.x), per_group = shape.channels / shape.groups;
    const std::int64_t first = block.y * std::int64_t{shape.channels} + group * per_group;  // in (B, C)
    const auto count = static_cast<float>(per_group * shape.pixels);
    const float center = moved_mean(block.y, 0, first);
    block.phase([&](int thread) {
      shared.sums[thread] = 0;
      each_partial(thread, per_group, [&](unsigned split, int channel, float pixels) {
        shared.sums[thread] += pixels * (moved_mean(block.y, split, first + channel) - center);
      });
    });
    fold(block, shared.sums);
    block.phase([&](int thread) {
      if (thread == 0) shared.mean = center + shared.sums[0] / count;
    });
    block.phase([&](int thread) {
      shared.sums[thread] = 0;
      each_partial(thread, per_group, [&](unsigned split, int channel, float pixels) {
        const float deviation = moved_mean(block.y, split, first + channel) - shared.mean;
        shared.sums[thread] += partials.of[1][at(block.y, split, first + channel)] + pixels * deviation * deviation;
      });
    });
    fold(block, shared.sums);
    block.phase([&](int thread) {
      if (thread != 0) return;
      shared.rstd = 1 / sqrtf(shared.sums[0] / count + arguments.eps);
      arguments.mean[block.y * shape.groups + group] = shared.mean;
      arguments.rstd[block.y * shape.groups + group] = shared.rstd;
    });
    block.phase([&](int thread) {
      for (int i = thread; i < per_group; i += threads) {
        const int channel = group * per_group + i;
        write_normalization(normalization, first + i, shared.mean, shared.rstd, arguments.addend.of(first + i, channel),
                            arguments.gamma[channel], arguments.beta[channel]);
      }
    });
  }

  // Of an element of (B, C) in a split.
  MILLRACE_HOST_DEVICE std::int64_t at(unsigned image, unsigned split, std::int64_t element) const {
    const std::int64_t channels = columns.channels;
    return element - image * channels + (std::int64_t{image} * columns.splits + split) * channels;
  }
  MILLRACE_HOST_DEVICE float moved_mean(unsigned image, unsigned split, std::int64_t element) const {
    const int channel = static_cast<int>(element - std::int64_t{image} * columns.channels);
    return partials.of[0][at(image, split, element)] + arguments.addend.of(element, channel);
  }
  template <class Use>
  MILLRACE_HOST_DEVICE void each_partial(int thread, int per_group, const Use& use) const {
    for (int i = thread; i < per_group * static_cast<int>(columns.splits); i += threads) {
      const unsigned split = i / per_group;
      const std::int64_t rest = columns.rows - split * columns.rows_per_split;
      use(split, i % per_group, static_cast<float>(rest < columns.rows_per_split ? rest : columns.rows_per_split));
    }
  }
};

// The numbers of a column's channels out of (B, C).
template <int width>
struct ColumnNormalization {
  float shift[width], scale[width], beta[width];

  MILLRACE_HOST_DEVICE ColumnNormalization(const Normalization& from, std::int64_t at) {
    load(from.shift + at, shift);
    load(from.scale + at, scale);
    load(from.beta + at, beta);
  }
};

template <class T, int width>
struct NormalizeKernel {
  static constexpr int threads = Columns::threads;
  using Shared = NoShared;
  const T* x;
  T* y;
  Columns columns;
  Normalization normalization;
  bool with_silu;

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.phase([&](int thread) {
      const auto place = columns.place<width>(block.x, block.y, thread);
      if (place.first >= place.last) return;
      const ColumnNormalization<width> norm(normalization, std::int64_t{block.z} * columns.channels + place.channel);
      const std::int64_t image = block.z * columns.rows * columns.channels + place.channel;
      through_rows(
          place, columns.row_step,
          [&](std::int64_t row) { return load_pack<width>(x + image + row * columns.channels); },
          [&](std::int64_t row, const Pack<T, width>& input) {
            normalize(input, norm, y + image + row * columns.channels);
          });
    });
  }

  MILLRACE_HOST_DEVICE void normalize(const Pack<T, width>& input, const ColumnNormalization<width>& norm,
                                      T* to) const {
    float values[width];
    unpack(input, values);
    for (int i = 0; i < width; ++i) {
      const float v = (values[i] - norm.shift[i]) * norm.scale[i] + norm.beta[i];
      values[i] = with_silu ? silu(v) : v;
    }
    store(to, values);
  }
};

// The normalization from the saved statistics. Grid (C / 128, B).
struct RestoreNormalizationKernel {
  static constexpr int threads = 128;
  using Shared = NoShared;
  GroupNormSiluBackward arguments;
  Normalization normalization;

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.phase([&](int thread) {
      const auto& shape = arguments.shape;
      const int channel = static_cast<int>(block.x) * threads + thread;
      if (channel >= shape.channels) return;
      const std::int64_t at = std::int64_t{block.y} * shape.channels + channel;
      const std::int64_t group = std::int64_t{block.y} * shape.groups + channel / (shape.channels / shape.groups);
      write_normalization(normalization, at, arguments.mean[group], arguments.rstd[group],
                          arguments.addend.of(at, channel), arguments.gamma[channel], arguments.beta[channel]);
    });
  }
};

// dv of one element: the gradient before SiLU.
MILLRACE_HOST_DEVICE inline float before_silu(float y_grad, float v, bool with_silu) {
  return with_silu ? y_grad * silu_derivative(v) : y_grad;
}

template <class T, int width>
struct GradientSumsKernel {
  static constexpr int threads = Columns::threads;
  using Shared = ColumnSums<3, width>;
  const T *x, *y_grad;
  Columns columns;
  Normalization normalization;
  ChannelPartials partials;
  bool with_silu;

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    block.phase([&](int thread) {
      const auto place = columns.place<width>(block.x, block.y, thread);
      float sums[3][width] = {};
      if (place.first < place.last) add_pixels(block.z, place, sums);
      shared.leave(thread, sums);
    });
    const std::int64_t row = (std::int64_t{block.z} * columns.splits + block.x) * columns.channels;
    shared.finish(block, columns, [&](int channel, const float(&sums)[3]) {
      for (int k = 0; k < 3; ++k) partials.of[k][row + channel] = sums[k];
    });
  }

  MILLRACE_HOST_DEVICE void add_pixels(unsigned image, const Columns::Place& place, float (&sums)[3][width]) const {
    const ColumnNormalization<width> norm(normalization, std::int64_t{image} * columns.channels + place.channel);
    const std::int64_t first = image * columns.rows * columns.channels + place.channel;
    MILLRACE_UNROLL_ROWS
    for (std::int64_t row = place.first; row < place.last; row += columns.row_step) {
      float values[width], gradients[width];
      load(x + first + row * columns.channels, values);
      load(y_grad + first + row * columns.channels, gradients);
      for (int i = 0; i < width; ++i) {
        const float deviation = values[i] - norm.shift[i];
        const float dv = before_silu(gradients[i], deviation * norm.scale[i] + norm.beta[i], with_silu);
        sums[0][i] += dv;
        sums[1][i] += dv * deviation;
        sums[2][i] += deviation;
      }
    }
  }
};

// With n elements in a group, z = (x - shift) rstd, s1 = sum of gamma dv, s2 = sum of gamma dv z:
// dx = rstd (gamma dv - s1 / n - z s2 / n). Grid (groups, B).
struct GroupGradientKernel {
  static constexpr int threads = 256;
  struct Shared {
    float over_splits[3][threads];  // of the partials that a thread has added up
    float sums1[threads], sums2[threads];
  };
  GroupNormSiluBackward arguments;
  Columns columns;
  GroupNormWorkspace workspace;

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    const auto& shape = arguments.shape;
    const int group = static_cast<int>(block.x), per_group = shape.channels / shape.groups;
    const std::int64_t first = block.y * std::int64_t{shape.channels} + group * per_group;  // in (B, C)
    const float rstd = arguments.rstd[block.y * shape.groups + group];
    block.phase([&](int thread) { shared.sums1[thread] = shared.sums2[thread] = 0; });
    for (int begin = 0; begin < per_group; begin += threads)
      add_splits(block, shared, first + begin, per_group - begin < threads ? per_group - begin : threads, rstd);
    fold(block, shared.sums1);
    fold(block, shared.sums2);
    const auto count = static_cast<float>(per_group * shape.pixels);
    block.phase([&](int thread) {
      const float offset = -rstd * shared.sums1[0] / count, x_factor = -rstd * rstd * shared.sums2[0] / count;
      for (int i = thread; i < per_group; i += threads) {
        workspace.offset[first + i] = offset;
        workspace.x_factor[first + i] = x_factor;
        const float dx_sum = workspace.normalization.scale[first + i] * workspace.dv_sums[first + i] +
                             x_factor * workspace.deviation_sums[first + i] + offset * static_cast<float>(shape.pixels);
        workspace.dx_sums[first + i] = dx_sum;
        if (arguments.time_grad.data != nullptr) arguments.time_grad.write(first + i, dx_sum);
      }
    });
  }

  // The sums of `count` <= threads elements of (B, C) from `first` on: the splits are dealt to the threads, which are
  // `count` side by side.
  template <class Block>
  MILLRACE_HOST_DEVICE void add_splits(Block& block, Shared& shared, std::int64_t first, int count, float rstd) const {
    const int splits_at_once = threads / count;
    const std::int64_t channels = columns.channels;
    const std::int64_t begin = block.y * columns.splits * channels + first - block.y * channels;  // in the partials
    block.phase([&](int thread) {
      float sums[3] = {};
      if (thread < splits_at_once * count) {
        MILLRACE_UNROLL_ROWS
        for (int split = thread / count; split < static_cast<int>(columns.splits); split += splits_at_once)
          for (int k = 0; k < 3; ++k) sums[k] += workspace.partials.of[k][begin + split * channels + thread % count];
      }
      for (int k = 0; k < 3; ++k) shared.over_splits[k][thread] = sums[k];
    });
    block.phase([&](int thread) {
      if (thread >= count) return;
      float sums[3] = {};
      for (int i = 0; i < splits_at_once; ++i)
        for (int k = 0; k < 3; ++k) sums[k] += shared.over_splits[k][i * count + thread];
      const float gamma = arguments.gamma[first + thread - block.y * channels];
      workspace.dv_sums[first + thread] = sums[0];
      workspace.dv_x_sums[first + thread] = rstd * sums[1];
      workspace.deviation_sums[first + thread] = sums[2];
      shared.sums1[thread] += gamma * sums[0];
      shared.sums2[thread] += gamma * rstd * sums[1];
    });
  }
};

template <class T, int width>
struct InputGradientKernel {
  static constexpr int threads = Columns::threads;
  using Shared = NoShared;
  const T *x, *y_grad, *x_grad_of_rest;
  T* x_grad;
  Columns columns;
  GroupNormWorkspace workspace;
  bool with_silu;

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.phase([&](int thread) {
      const auto place = columns.place<width>(block.x, block.y, thread);
      if (place.first >= place.last) return;
      const std::int64_t channel = std::int64_t{block.z} * columns.channels + place.channel;
      const ColumnNormalization<width> norm(workspace.normalization, channel);
      float x_factor[width], offset[width];
      load(workspace.x_factor + channel, x_factor);
      load(workspace.offset + channel, offset);
      const std::int64_t image = block.z * columns.rows * columns.channels + place.channel;
      struct Pixel {
        Pack<T, width> x, y_grad, rest;
      };
      const auto load_pixel = [&](std::int64_t row) {
        const std::int64_t at = image + row * columns.channels;
        Pixel pixel{load_pack<width>(x + at), load_pack<width>(y_grad + at), {}};
        if (x_grad_of_rest != nullptr) pixel.rest = load_pack<width>(x_grad_of_rest + at);
        return pixel;
      };
      through_rows(place, columns.row_step, load_pixel, [&](std::int64_t row, const Pixel& pixel) {
        float values[width], gradients[width], rest[width];
        unpack(pixel.x, values);
        unpack(pixel.y_grad, gradients);
        unpack(pixel.rest, rest);  // zeros where there is none
        for (int i = 0; i < width; ++i) {
          const float deviation = values[i] - norm.shift[i];
          const float dv = before_silu(gradients[i], deviation * norm.scale[i] + norm.beta[i], with_silu);
          values[i] = dv * norm.scale[i] + deviation * x_factor[i] + offset[i] + rest[i];
        }
        store(x_grad + image + row * columns.channels, values);
      });
    });
  }
};

template <class T, int width, class Launcher>
void launch_forward(const GroupNormSilu& a, const Launcher& launch) {
  const auto& s = a.shape;
  const auto workspace = cut_workspace(s, a.workspace);
  const auto sums = plan_columns(s.pixels, s.channels, width, s.batch, blocks_of_sums);
  const auto maps = plan_columns(s.pixels, s.channels, width, s.batch, blocks_of_maps);
  const auto* x = static_cast<const T*>(a.x);
  launch(MomentsKernel<T, width>{x, sums, workspace.partials}, grid_of(sums, s.batch));
  launch(StatisticsKernel{a, sums, workspace.partials, workspace.normalization},
         {static_cast<unsigned>(s.groups), static_cast<unsigned>(s.batch)});
  launch(NormalizeKernel<T, width>{x, static_cast<T*>(a.y), maps, workspace.normalization, a.with_silu},
         grid_of(maps, s.batch));
}

template <class T, int width, class Launcher>
void launch_backward(const GroupNormSiluBackward& a, const Launcher& launch) {
  const auto& s = a.shape;
  const auto workspace = cut_workspace(s, a.workspace);
  constexpr int narrow = std::min(width, 4);  // three sums of more channels leave a GPU registers for too few threads
  const auto sums = plan_columns(s.pixels, s.channels, narrow, s.batch, blocks_of_sums);
  const auto maps = plan_columns(s.pixels, s.channels, width, s.batch, blocks_of_maps);
  const auto *x = static_cast<const T*>(a.x), *y_grad = static_cast<const T*>(a.y_grad);
  const auto* rest = static_cast<const T*>(a.x_grad_of_rest);
  constexpr int threads = RestoreNormalizationKernel::threads;
  launch(RestoreNormalizationKernel{a, workspace.normalization},
         {static_cast<unsigned>((s.channels + threads - 1) / threads), static_cast<unsigned>(s.batch)});
  launch(GradientSumsKernel<T, narrow>{x, y_grad, sums, workspace.normalization, workspace.partials, a.with_silu},
         grid_of(sums, s.batch));
  launch(GroupGradientKernel{a, sums, workspace}, {static_cast<unsigned>(s.groups), static_cast<unsigned>(s.batch)});
  launch(InputGradientKernel<T, width>{x, y_grad, rest, static_cast<T*>(a.x_grad), maps, workspace, a.with_silu},
         grid_of(maps, s.batch));
  sum_rows({{workspace.dv_x_sums, a.gamma_grad}, {workspace.dv_sums, a.beta_grad}, {workspace.dx_sums, a.x_bias_grad}},
           s.batch, s.channels, launch);
}

template <class Launcher>
void launch_kernels(const GroupNormSilu& a, const Launcher& launch) {
  with_type_and_width(a.element, a.shape.channels, {a.x, a.y}, [&](auto zero, auto width) {
    launch_forward<decltype(zero), decltype(width)::value>(a, launch);
  });
}

template <class Launcher>
void launch_kernels(const GroupNormSiluBackward& a, const Launcher& launch) {
  with_type_and_width(
      a.element, a.shape.channels, {a.x, a.y_grad, a.x_grad_of_rest, a.x_grad},
      [&](auto zero, auto width) { launch_backward<decltype(zero), decltype(width)::value>(a, launch); });
}

}  // namespace millrace::kernels
