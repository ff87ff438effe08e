#include "millrace/image/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "decode_formats.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/image/file_kind.h"
#include "millrace/image/orientation.h"

namespace millrace {

namespace {

std::string describe_other(std::string_view bytes) {
  if (auto kind = find_other_kind(bytes)) return *std::move(kind);
  std::string hex;
  for (unsigned char c : bytes.substr(0, 8)) hex += fmt::format(" {:02x}", c);
  return "unknown bytes:" + hex;
}

}  // namespace

const char* to_string(DecodeError error) {
  switch (error) {
    case DecodeError::not_an_image:
      return "not_an_image";
    case DecodeError::undecodable:
      return "decode_error";
    case DecodeError::truncated:
      return "truncated_image";
    case DecodeError::too_small:
      return "too_small";
    case DecodeError::too_large:
      return "too_large";
  }
  return "decode_error";
}

void ImageConfig::describe(config::Section& s) {
  s.key("min_side", min_side, "shortest side of an image in pixels that is taken").at_least(1);
  s.key("max_side", max_side, "longest side that is taken").at_least(1).at_most(65500);
  s.key("min_pixels", min_pixels, "smallest width x height that is taken").at_least(1);
  s.key("max_pixels", max_pixels, "largest width x height that is taken").at_least(1).at_most(1 << 30);
  s.key("max_ratio", max_ratio, "largest longer side : shorter side that is taken; null = any").at_least(1);
  s.key("max_bytes", max_bytes, "largest file that is taken").at_least(1).at_most(256 << 20);
  s.key("exif", exif, {{"ignore", Exif::ignore}, {"apply", Exif::apply}},
        "the orientation a camera has noted: ignore = pixels as stored, as in the references; apply = upright");
  s.key("decode", decode, {{"exact", Decode::exact}, {"fast", Decode::fast}},
        "exact = pixels equal Pillow's; fast = large JPEGs are decoded at 1/2, 1/4 or 1/8 of their size, as long as "
        "that is no smaller than what they are resized to");
}

std::optional<DecodeFailure> check_size(std::int64_t width, std::int64_t height, const ImageConfig& config) {
  const auto [shorter, longer] = std::minmax(width, height);
  const auto pixels = fmt::format("{} x {} pixels", width, height);
  if (longer > config.max_side || width * height > config.max_pixels)
    return DecodeFailure{DecodeError::too_large, pixels};
  if (shorter < config.min_side || width * height < config.min_pixels)
    return DecodeFailure{DecodeError::too_small, pixels};
  if (config.max_ratio && static_cast<double>(longer) > *config.max_ratio * static_cast<double>(shorter))
    return DecodeFailure{DecodeError::too_large, fmt::format("{}, more than {} : 1", pixels, *config.max_ratio)};
  return {};
}

void set_size(Image& image, int width, int height) {
  image.width = width;
  image.height = height;
  image.pixels.resize(static_cast<std::size_t>(width) * height * 3);
}

// Pixels as they are stored.
static std::optional<DecodeFailure> decode_stored(Image& image, std::string_view bytes, const ImageConfig& config,
                                                  const WantedPixels& wanted) {
  const auto format = find_image_format(bytes);
  if (!format) return DecodeFailure{DecodeError::not_an_image, describe_other(bytes)};
  switch (*format) {
    case ImageFormat::jpeg:
      return decode_jpeg(bytes, config, wanted, image);
    case ImageFormat::png:
      return decode_png(bytes, config, wanted, image);
    case ImageFormat::webp:
      return decode_webp(bytes, config, wanted, image);
  }
  return {};
}

std::optional<DecodeFailure> decode_image_into(Image& image, std::string_view bytes, const ImageConfig& config,
                                               const WantedPixels& wanted) {
  if (bytes.size() > config.max_bytes)
    return DecodeFailure{DecodeError::too_large, fmt::format("{} bytes", bytes.size())};
  const int orientation = config.exif == ImageConfig::Exif::apply ? read_orientation(bytes) : upright;
  if (orientation == upright) return decode_stored(image, bytes, config, wanted);
  // The columns that are wanted are those of the turned image.
  if (auto failure = decode_stored(image, bytes, config, {{}, wanted.shorter_side, wanted.on_white})) return failure;
  apply_orientation(image, orientation);
  return {};
}

std::variant<Image, DecodeFailure> decode_image(std::string_view bytes, const ImageConfig& config) {
  Image image;
  if (auto failure = decode_image_into(image, bytes, config)) return std::move(*failure);
  return image;
}

Image read_image(const fs::path& file) {
  Image image;
  if (const auto failure = decode_image_into(image, read_file(file)))
    fail(Exit::io, "{}: {}", file.string(), failure->detail);
  return image;
}

}  // namespace millrace
