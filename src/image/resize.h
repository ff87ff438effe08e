#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "millrace/image/image.h"
#include "millrace/image/pillow_resize.h"

// Pillow's antialiased resize for 8-bit RGB: the same bytes, but only for the part of the result that is asked for.
namespace millrace {

// A rectangle of RGB bytes inside an image; `end` is the end of the whole buffer (wide loads may read up to it).
struct PixelView {
  const std::uint8_t* pixels;
  const std::uint8_t* end;
  std::size_t stride;  // bytes from row to row
  int width, height;
};

inline PixelView view_of(const Image& image) {
  return {image.pixels.data(), image.pixels.data() + image.pixels.size(), static_cast<std::size_t>(image.width) * 3,
          image.width, image.height};
}

// What to make: the source as a whole is resized to (full_width, full_height), of which the window is kept.
struct ResizeTarget {
  int full_width, full_height;
  int left, top, width, height;
  bool mirrored = false;  // the kept window is flipped left to right
};

// What one output of an axis resized from `in` to `full` pixels is made of: normalised weights from input `first` on.
struct OutputWeights {
  int first;
  std::vector<double> weights;
};
OutputWeights weights_of_output(int output, int in, int full, ResizeFilter filter);

// The inputs that outputs [begin, begin + size) are made of, along an axis resized from `in` to `full` pixels.
PixelRange inputs_of_resize(int in, int full, int begin, int size, ResizeFilter filter);

// Which pass comes first: each rounds to 8 bits, so the order shows. Pillow from 13.0.0 on goes down first where the
// height shrinks by more than twice as many pixels as the width; before 13.0.0 it went across first (but for images
// over 100 times as high as wide).
inline bool goes_down_first(int width, int height, int full_width, int full_height) {
  return height > full_height && height - full_height > 2 * (width - full_width);
}

// Writes height * width * 3 bytes without gaps. `out` must not overlap the source.
void resize(const PixelView& source, const ResizeTarget& target, ResizeFilter filter, std::uint8_t* out);

// The same with the portable loops, whatever the processor: the twin that tests compare with.
void resize_portable(const PixelView& source, const ResizeTarget& target, ResizeFilter filter, std::uint8_t* out);

}  // namespace millrace
