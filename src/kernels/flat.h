#pragma once
#include <algorithm>
#include <cstdint>

#include "element.h"

// How vectors of n elements are dealt to the threads of a grid.
namespace millrace::kernels::flat {

inline constexpr int threads = 256, width = 8;  // elements of a thread at a time

inline unsigned blocks(std::int64_t n, std::int64_t most) {
  const std::int64_t needed = (n + threads * width - 1) / (threads * width);
  return static_cast<unsigned>(std::clamp<std::int64_t>(needed, 1, most));
}

// Elements are given to threads in the same way whether or not they are aligned.
template <bool aligned, class T>
MILLRACE_HOST_DEVICE inline void load_some(const T* from, float (&values)[width]) {
  if constexpr (aligned) {
    load(from, values);
  } else {
    for (int i = 0; i < width; ++i) values[i] = to_float(from[i]);
  }
}

template <bool aligned, class T>
MILLRACE_HOST_DEVICE inline void store_some(T* to, const float (&values)[width]) {
  if constexpr (aligned) {
    store(to, values);
  } else {
    for (int i = 0; i < width; ++i) assign(to[i], values[i]);
  }
}

}  // namespace millrace::kernels::flat
