#pragma once
#include "bias.h"
#include "columns.h"

namespace millrace::kernels {

// Enough for a GPU to read at full speed; each is a row of partial sums that are added up afterwards.
inline constexpr std::int64_t blocks_of_bias_sums = 512;

template <class T, int width, bool with_residual>
struct AddBiasKernel {
  static constexpr int threads = Columns::threads;
  using Shared = NoShared;
  AddBias arguments;
  Columns columns;

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.phase([&](int thread) {
      const auto place = columns.place<width>(block.x, block.y, thread);
      if (place.first < place.last) go_through_rows(place);
    });
  }

  MILLRACE_HOST_DEVICE void go_through_rows(const Columns::Place& place) const {
    const T* x = static_cast<const T*>(arguments.x) + place.channel;
    T* y = static_cast<T*>(arguments.y) + place.channel;
    float bias[width];
    arguments.bias.read(place.channel, bias);
    struct Row {
      Pack<T, width> x, residual;
    };
    const auto load_row = [&](std::int64_t row) {
      Row loaded{load_pack<width>(x + row * columns.channels), {}};
      if constexpr (with_residual)
        loaded.residual =
            load_pack<width>(static_cast<const T*>(arguments.residual) + row * columns.channels + place.channel);
      return loaded;
    };
    through_rows(place, columns.row_step, load_row, [&](std::int64_t row, const Row& loaded) {
      float values[width], others[width] = {};
      unpack(loaded.x, values);
      if constexpr (with_residual) unpack(loaded.residual, others);
      for (int i = 0; i < width; ++i) values[i] = values[i] + bias[i] + others[i];
      store(y + row * columns.channels, values);
    });
  }
};

// Sums over the rows of a split: (splits, C), or what is wanted where there is one split.
template <class T, int width>
struct BiasGradientKernel {
  static constexpr int threads = Columns::threads;
  using Shared = ColumnSums<1, width>;
  BiasGradient arguments;
  Columns columns;

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    block.phase([&](int thread) {
      const auto place = columns.place<width>(block.x, block.y, thread);
      float sums[1][width] = {};
      const T* y_grad = static_cast<const T*>(arguments.y_grad) + place.channel;
      MILLRACE_UNROLL_ROWS
      for (std::int64_t row = place.first; row < place.last; row += columns.row_step) {
        float values[width];
        load(y_grad + row * columns.channels, values);
        for (int i = 0; i < width; ++i) sums[0][i] += values[i];
      }
      shared.leave(thread, sums);
    });
    float* partials = static_cast<float*>(arguments.workspace) + std::int64_t{block.x} * columns.channels;
    shared.finish(block, columns, [&](int channel, const float(&sums)[1]) {
      if (columns.splits == 1) {
        arguments.bias_grad.write(channel, sums[0]);
      } else {
        partials[channel] = sums[0];
      }
    });
  }
};

template <class T, int width, class Launcher>
void launch_add_bias_of(const AddBias& a, const Launcher& launch) {
  const auto maps = plan_columns(a.rows, a.channels, width, 1, blocks_of_maps);
  if (a.residual != nullptr) {
    launch(AddBiasKernel<T, width, true>{a, maps}, grid_of(maps));
  } else {
    launch(AddBiasKernel<T, width, false>{a, maps}, grid_of(maps));
  }
}

template <class Launcher>
void launch_kernels(const AddBias& a, const Launcher& launch) {
  with_type_and_width(a.element, a.channels, {a.x, a.residual, a.y, a.bias.data}, [&](auto zero, auto width) {
    launch_add_bias_of<decltype(zero), decltype(width)::value>(a, launch);
  });
}

template <class T, int width, class Launcher>
void launch_bias_gradient_of(const BiasGradient& a, const Launcher& launch) {
  const auto sums = plan_columns(a.rows, a.channels, width, 1, blocks_of_bias_sums);
  launch(BiasGradientKernel<T, width>{a, sums}, grid_of(sums));
  if (sums.splits > 1)
    sum_rows({{static_cast<const float*>(a.workspace), a.bias_grad}}, sums.splits, a.channels, launch);
}

template <class Launcher>
void launch_kernels(const BiasGradient& a, const Launcher& launch) {
  with_type_and_width(a.element, a.channels, {a.y_grad}, [&](auto zero, auto width) {
    launch_bias_gradient_of<decltype(zero), decltype(width)::value>(a, launch);
  });
}

}  // namespace millrace::kernels
