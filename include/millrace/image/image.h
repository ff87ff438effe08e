#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace millrace {

// Allocates without setting values: filling an image with zeros before its pixels are written costs 3 % of decode and
// transform at 512 px.
template <class T>
struct UninitializedAllocator : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = UninitializedAllocator<U>;
  };
  template <class U>
  void construct(U* at) {
    ::new (static_cast<void*>(at)) U;
  }
  template <class U, class... Arguments>
  void construct(U* at, Arguments&&... arguments) {
    ::new (static_cast<void*>(at)) U(std::forward<Arguments>(arguments)...);
  }
};
using Pixels = std::vector<std::uint8_t, UninitializedAllocator<std::uint8_t>>;  // resize() leaves values open

// 8-bit RGB, rows top to bottom, no padding: pixels[(y * width + x) * 3 + channel].
struct Image {
  int width = 0, height = 0;
  Pixels pixels;
};

// Its pixels hold anything.
inline Image make_image(int width, int height) {
  return {width, height, Pixels(std::size_t{3} * width * height)};
}

// Columns or rows [begin, end) of an image.
struct PixelRange {
  int begin = 0, end = 0;
  bool operator==(const PixelRange&) const = default;
};

}  // namespace millrace
