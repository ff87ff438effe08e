#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "millrace/data/sample.h"

namespace millrace {

struct DecodeLimits {
  std::int64_t max_pixels = 178'956'970;  // Pillow's decompression-bomb error
  int max_side = 65500;
  int min_side = 1;
};

struct DecodeFailure {
  Reason reason;
  std::string detail;  // "truncated after 311 of 512 rows", "a GIF image", ...
};

// JPEG, PNG or WebP by magic bytes -> RGB as Pillow's convert("RGB") gives it (CMYK, gray, palette, 16 bit, alpha
// included); EXIF orientation is ignored as the references do. Anything else, or a truncated file, is a DecodeFailure.
std::variant<Image, DecodeFailure> decode_image(std::string_view bytes, const DecodeLimits& limits = {});

// The columns that are wanted of an image of this size.
using WantedColumns = std::function<PixelRange(int width, int height)>;

// The same into an image whose memory is used again: for loops over many files. After a failure its pixels mean
// nothing; so do those of columns that `wanted` leaves out (a JPEG is then decoded in part; it must be whole all the
// same).
std::optional<DecodeFailure> decode_image_into(Image& image, std::string_view bytes, const DecodeLimits& limits = {},
                                               const WantedColumns& wanted = {});

}  // namespace millrace
