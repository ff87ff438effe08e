#include "millrace/data/transform.h"

#include <algorithm>

#include "pixels.h"

namespace millrace {

namespace {

struct Offset {
  int x, y;
};

// Where a window of the same size in both directions lies inside (width, height): in the middle (floors), or anywhere.
Offset place_window(int width, int height, int size, TransformConfig::Crop crop, const RngKey& key) {
  if (crop == TransformConfig::Crop::center) return {(width - size) / 2, (height - size) / 2};
  return {static_cast<int>(uniform_int(key, Purpose::crop, width - size + 1, 0)),
          static_cast<int>(uniform_int(key, Purpose::crop, height - size + 1, 1))};
}

PixelView square_of(const Image& image, Offset corner, int side) {
  PixelView square = view(image);
  square.pixels += corner.y * square.stride + corner.x * 3;
  square.width = square.height = side;
  return square;
}

// The shorter side becomes `size`; the longer one keeps the proportion, cut to a whole number.
int resized_side(int side, int shorter, int size) {
  return static_cast<int>(static_cast<std::int64_t>(size) * side / shorter);
}

}  // namespace

void TransformConfig::describe(config::Section& s) {
  s.key("resolution", resolution, "side of the training images in pixels").at_least(8);
  s.key("policy", policy,
        {{"resize_then_crop", Policy::resize_then_crop}, {"crop_then_resize", Policy::crop_then_resize}},
        "shorter side to the resolution and crop, or largest square and resize");
  s.key("crop", crop, {{"center", Crop::center}, {"random", Crop::random}}, "which part of the longer side is kept");
  s.key(
      "interpolation", interpolation,
      {{"bilinear", Interpolation::bilinear}, {"bicubic", Interpolation::bicubic}, {"lanczos", Interpolation::lanczos}},
      "filter of the antialiased resize, as in Pillow");
  s.key("flip", flip, "probability of mirroring an image").at_least(0).at_most(1);
}

Image transform_image(const Image& image, const TransformConfig& config, const RngKey& key) {
  const int size = config.resolution, shorter = std::min(image.width, image.height);
  const bool mirrored = config.flip > 0 && uniform(key, Purpose::flip) < config.flip;
  PixelView source = view(image);
  ResizeTarget target{size, size, 0, 0, size, size, mirrored};
  if (config.policy == TransformConfig::Policy::resize_then_crop) {
    target.full_width = resized_side(image.width, shorter, size);
    target.full_height = resized_side(image.height, shorter, size);
    const Offset corner = place_window(target.full_width, target.full_height, size, config.crop, key);
    target.left = corner.x;
    target.top = corner.y;
  } else {
    source = square_of(image, place_window(image.width, image.height, shorter, config.crop, key), shorter);
  }
  Image out{size, size, {}};
  out.pixels.resize(static_cast<std::size_t>(size) * size * 3);
  resize(source, target, filter_of(config.interpolation), out.pixels.data());
  return out;
}

}  // namespace millrace
