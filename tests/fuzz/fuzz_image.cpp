// Any bytes: an image of the size it claims, or a failure, the same for a part of its columns and for a smaller and
// turned one; then both transforms.
#include <cstdlib>
#include <string_view>

#include "millrace/image/decode.h"
#include "millrace/image/transform.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  ImageConfig limits;
  limits.max_pixels = 1 << 18;
  const auto result = decode_image(bytes, limits);
  const auto* image = std::get_if<Image>(&result);
  Image part;
  const auto middle = [](int width, int) { return PixelRange{width / 3, width - width / 3}; };
  if (decode_image_into(part, bytes, limits, {middle}).has_value() == (image != nullptr)) std::abort();
  limits.exif = ImageConfig::Exif::apply;
  limits.decode = ImageConfig::Decode::fast;
  if (decode_image_into(part, bytes, limits, {middle, 40}).has_value() == (image != nullptr)) std::abort();
  if (image && part.pixels.size() != static_cast<std::size_t>(part.width) * part.height * 3) std::abort();
  if (!image) return 0;
  if (image->pixels.size() != static_cast<std::size_t>(image->width) * image->height * 3) std::abort();
  for (const auto policy : {TransformConfig::Policy::resize_then_crop, TransformConfig::Policy::crop_then_resize}) {
    TransformConfig config;
    config.resolution = 40;
    config.policy = policy;
    config.crop = TransformConfig::Crop::random;
    if (transform_image(*image, config, {size, image->pixels[0], 0}).pixels.size() != 40 * 40 * 3) std::abort();
  }
  return 0;
}
