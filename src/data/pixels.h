#pragma once
#include "millrace/data/sample.h"
#include "millrace/data/transform.h"
#include "resize.h"

// From the data flow's words to those of the resize.
namespace millrace {

inline PixelView view(const Image& image) {
  return {image.pixels.data(), image.pixels.data() + image.pixels.size(), static_cast<std::size_t>(image.width) * 3,
          image.width, image.height};
}

inline ResizeFilter filter_of(TransformConfig::Interpolation interpolation) {
  switch (interpolation) {
    case TransformConfig::Interpolation::bilinear:
      return ResizeFilter::bilinear;
    case TransformConfig::Interpolation::bicubic:
      return ResizeFilter::bicubic;
    case TransformConfig::Interpolation::lanczos:
      return ResizeFilter::lanczos;
  }
  return ResizeFilter::bilinear;
}

}  // namespace millrace
