#pragma once
#include <vector>

#include "millrace/image/image.h"

// Pillow's antialiased bicubic resize of a whole image, for networks whose numbers were published with it.
namespace millrace {

// Its filters, all antialiased.
enum class ResizeFilter { bilinear, bicubic, lanczos };

// In 8 bits: the same bytes as Image.resize((width, height), BICUBIC) of an RGB image.
Image resize_bicubic(const Image& image, int width, int height);

// In float32, as of three images of mode "F", one per channel: [3][height][width], neither rounded nor clipped.
std::vector<float> resize_bicubic_float(const Image& image, int width, int height);

}  // namespace millrace
