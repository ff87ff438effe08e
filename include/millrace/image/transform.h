#pragma once
#include "millrace/config/config.h"
#include "millrace/core/philox.h"
#include "millrace/image/image.h"
#include "millrace/image/pillow_resize.h"

namespace millrace {

struct TransformConfig {
  enum class Policy { resize_then_crop, crop_then_resize };
  enum class Crop { center, random };
  using Interpolation = ResizeFilter;
  int resolution = 256;
  Policy policy = Policy::resize_then_crop;
  Crop crop = Crop::center;
  Interpolation interpolation = Interpolation::bilinear;
  double flip = 0.0;

  void describe(config::Section& section);
};

// The reference transforms (Anyscale and MosaicML: resize_then_crop with bilinear; open-diffusion: crop_then_resize
// with bicubic): RGB image of any size -> (resolution, resolution). Pixels equal Pillow's. `key` feeds random crop and
// flip.
Image transform_image(const Image& image, const TransformConfig& config, const RngKey& key);

// The columns of an image of this size that decide the result; the others may hold anything.
PixelRange columns_of_transform(int width, int height, const TransformConfig& config, const RngKey& key);

}  // namespace millrace
