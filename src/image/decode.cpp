#include "millrace/image/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "decode_formats.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/text.h"
#include "millrace/image/orientation.h"

namespace millrace {

using namespace std::string_view_literals;

namespace {

constexpr std::string_view jpeg_magic = "\xFF\xD8\xFF"sv;
constexpr std::string_view png_magic = "\x89PNG\r\n\x1A\n"sv;

bool is_webp(std::string_view bytes) {
  return bytes.starts_with("RIFF") && bytes.substr(0, 12).ends_with("WEBP");
}

// ISO media files carry their kind as "ftyp" + brand from byte 4.
std::optional<std::string> media_kind(std::string_view bytes) {
  if (bytes.size() < 12 || bytes.substr(4, 4) != "ftyp") return {};
  const std::string_view brand = bytes.substr(8, 4);
  if (brand == "avif" || brand == "avis") return "an AVIF image";
  if (brand == "heic" || brand == "heix" || brand == "mif1" || brand == "msf1") return "a HEIF image";
  return "a media file (" + valid_utf8(brand) + ")";  // of a stranger: any bytes
}

// Web servers answer with pages where an image was: look at the first words of a text.
std::optional<std::string> text_kind(std::string_view bytes) {
  std::string_view start = bytes.substr(0, 512);
  if (start.starts_with("\xEF\xBB\xBF")) start.remove_prefix(3);
  start.remove_prefix(std::min(start.find_first_not_of(" \t\r\n"), start.size()));
  const std::string head = lower(start);
  if (!head.starts_with('<')) return {};
  if (head.find("<svg") != head.npos) return "an SVG drawing";
  if (head.starts_with("<!doctype html") || head.find("<html") != head.npos) return "an HTML page";
  return "an XML or HTML text";
}

std::string describe_kind(std::string_view bytes) {
  static constexpr std::array<std::pair<std::string_view, const char*>, 9> kinds{{
      {"GIF8", "a GIF image"},
      {"BM", "a BMP image"},
      {"II*\0"sv, "a TIFF image"},
      {"MM\0*"sv, "a TIFF image"},
      {"%PDF", "a PDF document"},
      {"\0\0\1\0"sv, "an ICO image"},
      {"8BPS", "a Photoshop document"},
      {"\xFF\x0A", "a JPEG XL image"},
      {"\0\0\0\x0CjP  "sv, "a JPEG 2000 image"},
  }};
  for (const auto& [magic, kind] : kinds) {
    if (bytes.starts_with(magic)) return kind;
  }
  if (auto kind = media_kind(bytes)) return *kind;
  if (auto kind = text_kind(bytes)) return *kind;
  if (bytes.empty()) return "no bytes";
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
static std::optional<DecodeFailure> decode_by_magic(Image& image, std::string_view bytes, const ImageConfig& config,
                                                    const WantedPixels& wanted) {
  if (bytes.starts_with(jpeg_magic)) return decode_jpeg(bytes, config, wanted, image);
  if (bytes.starts_with(png_magic)) return decode_png(bytes, config, wanted, image);
  if (is_webp(bytes)) return decode_webp(bytes, config, wanted, image);
  return DecodeFailure{DecodeError::not_an_image, describe_kind(bytes)};
}

std::optional<DecodeFailure> decode_image_into(Image& image, std::string_view bytes, const ImageConfig& config,
                                               const WantedPixels& wanted) {
  if (bytes.size() > config.max_bytes)
    return DecodeFailure{DecodeError::too_large, fmt::format("{} bytes", bytes.size())};
  const int orientation = config.exif == ImageConfig::Exif::apply ? read_orientation(bytes) : upright;
  if (orientation == upright) return decode_by_magic(image, bytes, config, wanted);
  // The columns that are wanted are those of the turned image.
  if (auto failure = decode_by_magic(image, bytes, config, {{}, wanted.shorter_side, wanted.on_white})) return failure;
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
