#pragma once
#include "millrace/data/sample.h"
#include "millrace/data/transform.h"

namespace millrace {

// The whole image at another size, at least one pixel each way; pixels as Pillow's antialiased resize gives them.
Image resize_image(const Image& image, int width, int height, TransformConfig::Interpolation interpolation);

}  // namespace millrace
