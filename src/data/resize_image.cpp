#include "millrace/data/resize_image.h"

#include "pixels.h"

namespace millrace {

Image resize_image(const Image& image, int width, int height, TransformConfig::Interpolation interpolation) {
  Image out{width, height, {}};
  out.pixels.resize(static_cast<std::size_t>(width) * height * 3);
  resize(view(image), {width, height, 0, 0, width, height}, filter_of(interpolation), out.pixels.data());
  return out;
}

}  // namespace millrace
