#pragma once
#include <type_traits>

#include "columns.h"
#include "geglu.h"
#include "scalar_math.h"

namespace millrace::kernels {

// Of `width` channels from `channel` on; zeros where there is none.
template <int width>
struct GegluBias {
  MILLRACE_HOST_DEVICE GegluBias(const Values& bias, int channel, int channels) {
    if (bias.data == nullptr) return;
    bias.read(channel, value);
    bias.read(channels + channel, gate);
  }
  float value[width] = {}, gate[width] = {};
};

template <class T, int width>
struct GegluKernel {
  static constexpr int threads = Columns::threads;
  using Shared = NoShared;
  Geglu arguments;
  Columns columns;

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.phase([&](int thread) {
      const auto place = columns.place<width>(block.x, block.y, thread);
      if (place.first < place.last) go_through_rows(place);
    });
  }

  MILLRACE_HOST_DEVICE void go_through_rows(const Columns::Place& place) const {
    const int channels = arguments.channels;
    const T* x = static_cast<const T*>(arguments.x) + place.channel;
    T* y = static_cast<T*>(arguments.y) + place.channel;
    const GegluBias<width> bias(arguments.bias, place.channel, channels);
    struct Row {
      Pack<T, width> value, gate;
    };
    const auto load_row = [&](std::int64_t row) {
      const T* from = x + row * 2 * channels;
      return Row{load_pack<width>(from), load_pack<width>(from + channels)};
    };
    through_rows(place, columns.row_step, load_row, [&](std::int64_t row, const Row& loaded) {
      float values[width], gates[width];
      unpack(loaded.value, values);
      unpack(loaded.gate, gates);
      for (int i = 0; i < width; ++i) {
        const float gate = gates[i] + bias.gate[i];
        values[i] = (values[i] + bias.value[i]) * (gate * normal_at(gate).distribution);
      }
      store(y + row * channels, values);
    });
  }
};

template <class T, int width, bool with_bias_grad>
struct GegluBackwardKernel {
  static constexpr int threads = Columns::threads;
  using Sums = ColumnSums<2, width>;
  using Shared = std::conditional_t<with_bias_grad, Sums, NoShared>;
  GegluBackward arguments;
  Columns columns;

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    block.phase([&](int thread) {
      const auto place = columns.place<width>(block.x, block.y, thread);
      float sums[2][width] = {};
      if (place.first < place.last) go_through_rows(place, sums);
      if constexpr (with_bias_grad) shared.leave(thread, sums);
    });
    if constexpr (with_bias_grad) {
      float* partials = static_cast<float*>(arguments.workspace) + std::int64_t{block.x} * 2 * arguments.channels;
      shared.finish(block, columns, [&](int channel, const float(&sums)[2]) {
        partials[channel] = sums[0];
        partials[arguments.channels + channel] = sums[1];
      });
    }
  }

  // sums: of the gradients of value and gate.
  MILLRACE_HOST_DEVICE void go_through_rows(const Columns::Place& place, float (&sums)[2][width]) const {
    const int channels = arguments.channels;
    const T* x = static_cast<const T*>(arguments.x) + place.channel;
    const T* y_grad = static_cast<const T*>(arguments.y_grad) + place.channel;
    T* x_grad = static_cast<T*>(arguments.x_grad) + place.channel;
    const GegluBias<width> bias(arguments.bias, place.channel, channels);
    struct Row {
      Pack<T, width> value, gate, y_grad;
    };
    const auto load_row = [&](std::int64_t row) {
      const T* from = x + row * 2 * channels;
      return Row{load_pack<width>(from), load_pack<width>(from + channels), load_pack<width>(y_grad + row * channels)};
    };
    through_rows(place, columns.row_step, load_row, [&](std::int64_t row, const Row& loaded) {
      float values[width], gates[width], gradients[width];
      unpack(loaded.value, values);
      unpack(loaded.gate, gates);
      unpack(loaded.y_grad, gradients);
      for (int i = 0; i < width; ++i) {
        const float value = values[i] + bias.value[i], gate = gates[i] + bias.gate[i];
        const Normal normal = normal_at(gate);
        values[i] = gradients[i] * (gate * normal.distribution);
        gates[i] = gradients[i] * value * (normal.distribution + gate * normal.density);
        sums[0][i] += values[i];
        sums[1][i] += gates[i];
      }
      store(x_grad + row * 2 * channels, values);
      store(x_grad + row * 2 * channels + channels, gates);
    });
  }
};

template <class T, int width, class Launcher>
void launch_geglu_backward_of(const GegluBackward& a, const Launcher& launch) {
  if (a.bias_grad.data == nullptr) {
    const auto maps = plan_columns(a.rows, a.channels, width, 1, blocks_of_maps);
    launch(GegluBackwardKernel<T, width, false>{a, maps}, grid_of(maps));
    return;
  }
  const auto sums = plan_columns(a.rows, a.channels, width, 1, blocks_of_sums);
  launch(GegluBackwardKernel<T, width, true>{a, sums}, grid_of(sums));
  sum_rows({{static_cast<const float*>(a.workspace), a.bias_grad}}, sums.splits, 2 * a.channels, launch);
}

template <class T, int width, class Launcher>
void launch_geglu_of(const Geglu& a, const Launcher& launch) {
  const auto maps = plan_columns(a.rows, a.channels, width, 1, blocks_of_maps);
  launch(GegluKernel<T, width>{a, maps}, grid_of(maps));
}

template <class Launcher>
void launch_kernels(const Geglu& a, const Launcher& launch) {
  with_type_and_width(a.element, a.channels, {a.x, a.y, a.bias.data}, [&](auto zero, auto width) {
    launch_geglu_of<decltype(zero), decltype(width)::value>(a, launch);
  });
}

template <class Launcher>
void launch_kernels(const GegluBackward& a, const Launcher& launch) {
  with_type_and_width(a.element, a.channels, {a.x, a.y_grad, a.x_grad, a.bias.data}, [&](auto zero, auto width) {
    launch_geglu_backward_of<decltype(zero), decltype(width)::value>(a, launch);
  });
}

}  // namespace millrace::kernels
