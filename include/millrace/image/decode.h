#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "millrace/config/config.h"
#include "millrace/image/image.h"

namespace millrace {

// Section `data.images`: which images are taken, judged by their headers before a pixel is decoded, and how these are
// decoded. Images outside the limits are too_small or too_large.
struct ImageConfig {
  enum class Exif { ignore, apply };
  enum class Decode { exact, fast };
  int min_side = 1, max_side = 65500;                     // in pixels
  std::int64_t min_pixels = 1, max_pixels = 178'956'970;  // width x height; Pillow's decompression-bomb error
  std::optional<double> max_ratio = {};                   // longer side / shorter side
  config::Bytes max_bytes{256 << 20};                     // of the file
  Exif exif = Exif::ignore;
  Decode decode = Decode::exact;

  void describe(config::Section& section);
};

enum class DecodeError { not_an_image, undecodable, truncated, too_small, too_large };

const char* to_string(DecodeError error);

struct DecodeFailure {
  DecodeError error;
  std::string detail;  // "truncated after 311 of 512 rows", "a GIF image", ...
};

// JPEG, PNG or WebP by magic bytes -> RGB as Pillow's convert("RGB") gives it (CMYK, gray, palette, 16 bit, alpha
// included), with exif=apply after ImageOps.exif_transpose. Anything else, or a truncated file, is a DecodeFailure.
std::variant<Image, DecodeFailure> decode_image(std::string_view bytes, const ImageConfig& config = {});

// The same of a file, with exif=ignore. Error(io) naming it.
Image read_image(const std::filesystem::path& file);

// What is wanted of an image.
struct WantedPixels {
  // The columns of an image of this size; all when empty. The pixels of the others then mean nothing.
  std::function<PixelRange(int width, int height)> columns = {};
  // A shorter side of so many pixels is enough: decode=fast may halve the image down to that; 0 = never.
  int shorter_side = 0;
  // What is transparent lies on white; otherwise alpha is dropped, as Pillow's convert("RGB") does.
  bool on_white = false;
};

// The same into an image whose memory is used again: for loops over many files. After a failure its pixels mean
// nothing. A JPEG may be decoded in part; it must be whole all the same.
std::optional<DecodeFailure> decode_image_into(Image& image, std::string_view bytes, const ImageConfig& config = {},
                                               const WantedPixels& wanted = {});

}  // namespace millrace
