#include "millrace/image/transform.h"

#include <algorithm>

#include "resize.h"

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

// The shorter side becomes `size`; the longer one keeps the proportion, cut to a whole number.
int resized_side(int side, int shorter, int size) {
  return static_cast<int>(static_cast<std::int64_t>(size) * side / shorter);
}

// Which rectangle of the image is resized, and what of the result is kept.
struct Plan {
  struct Rectangle {
    int x, y, width, height;
  } source;
  ResizeTarget target;
};

Plan plan_transform(int width, int height, const TransformConfig& config, const RngKey& key) {
  const int size = config.resolution, shorter = std::min(width, height);
  Plan plan{{0, 0, width, height}, {size, size, 0, 0, size, size}};
  plan.target.mirrored = config.flip > 0 && uniform(key, Purpose::flip) < config.flip;
  if (config.policy == TransformConfig::Policy::resize_then_crop) {
    plan.target.full_width = resized_side(width, shorter, size);
    plan.target.full_height = resized_side(height, shorter, size);
    const Offset corner = place_window(plan.target.full_width, plan.target.full_height, size, config.crop, key);
    plan.target.left = corner.x;
    plan.target.top = corner.y;
  } else {
    const Offset corner = place_window(width, height, shorter, config.crop, key);
    plan.source = {corner.x, corner.y, shorter, shorter};
  }
  return plan;
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
  const int size = config.resolution;
  const Plan plan = plan_transform(image.width, image.height, config, key);
  PixelView source = view_of(image);
  source.pixels += plan.source.y * source.stride + plan.source.x * 3;
  source.width = plan.source.width;
  source.height = plan.source.height;
  Image out = make_image(size, size);
  resize(source, plan.target, config.interpolation, out.pixels.data());
  return out;
}

PixelRange columns_of_transform(int width, int height, const TransformConfig& config, const RngKey& key) {
  const auto [source, target] = plan_transform(width, height, config, key);
  const PixelRange read =
      inputs_of_resize(source.width, target.full_width, target.left, target.width, config.interpolation);
  return {source.x + read.begin, source.x + read.end};
}

}  // namespace millrace
