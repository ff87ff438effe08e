#pragma once
#include <optional>
#include <string>
#include <variant>

#include "millrace/download/download_config.h"
#include "millrace/download/failure.h"
#include "millrace/image/image.h"

namespace millrace {

// An image as it is stored.
struct StoredImage {
  std::string bytes;
  std::string type;                             // jpg, png or webp, by its first bytes
  int width = 0, height = 0;                    // of these bytes
  int original_width = 0, original_height = 0;  // of the downloaded ones
  std::string sha256;                           // hex, of the downloaded ones
  std::string exif;                             // JSON of what these bytes no longer tell; empty = nothing
};

// The pixels that are stored of an image, those of img2dataset's resizer; `mode` is not none. Nothing where a side
// would have more than the 65,500 pixels of a JPEG.
std::optional<Image> resize_to_store(const Image& image, DownloadConfig::Resize mode, int size);

// The whole way from a downloaded body to what is stored: digest, first bytes, decoding, resize.
// `expected_hash`: hex digits of md5, sha256 or sha512 by their number; empty = not checked.
std::variant<StoredImage, Failure> prepare_image(std::string body, const std::string& expected_hash,
                                                 const DownloadConfig& config);

}  // namespace millrace
