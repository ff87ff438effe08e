#pragma once
#include <cstdint>

#include "millrace/image/image.h"

// Images at other sizes by OpenCV, for what people look at and what `download` stores. Training's resize, which equals
// Pillow's, is in transform.h.
namespace millrace {

// The whole image at (width, height) pixels, at least one each way: INTER_AREA where a side becomes shorter,
// INTER_LANCZOS4 otherwise.
Image resize_image(const Image& image, int width, int height);

// The middle of the image, (width, height) pixels, which is no larger than the image. An odd pixel is lost at the right
// and at the bottom.
Image crop_center(const Image& image, int width, int height);

// The image in the middle of (width, height) pixels of one `level` in all channels, no smaller than the image. An odd
// pixel is added at the right and at the bottom.
Image add_borders(const Image& image, int width, int height, std::uint8_t level);

}  // namespace millrace
