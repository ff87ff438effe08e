#include "image.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "millrace/core/error.h"
#include "millrace/core/text.h"
#include "millrace/image/decode.h"
#include "millrace/image/encode_jpeg.h"
#include "millrace/image/file_kind.h"
#include "millrace/image/orientation.h"
#include "millrace/image/resize_image.h"

namespace millrace {

namespace {

using Resize = DownloadConfig::Resize;

std::string hex_digest(std::string_view bytes, const EVP_MD* kind) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned length = 0;
  ensure(EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, kind, nullptr) == 1, "a digest can be had");
  return fmt::format("{:02x}", fmt::join(digest.begin(), digest.begin() + length, ""));
}

// Nothing when the body is what the list asks for.
std::optional<Failure> check_hash(std::string_view body, const std::string& expected) {
  if (expected.empty()) return std::nullopt;
  const EVP_MD* const kind = expected.size() == 32    ? EVP_md5()
                             : expected.size() == 64  ? EVP_sha256()
                             : expected.size() == 128 ? EVP_sha512()
                                                      : nullptr;
  if (!kind) return Failure{FailureKind::hash, "the list's is no md5, sha256 or sha512"};
  if (hex_digest(body, kind) != lower(expected)) return Failure{FailureKind::hash, "mismatch"};
  return std::nullopt;
}

// img2dataset's, which computes it in double precision and rounds halves to even numbers.
int scale_side(int side, double scale) {
  return std::max(1, static_cast<int>(std::nearbyint(side * scale)));
}

// The orientation in the words of ExifRead, which img2dataset writes; other tags are of no use for training.
std::string exif_of(std::string_view body) {
  static constexpr std::array<const char*, 9> words = {"",
                                                       "Horizontal (normal)",
                                                       "Mirrored horizontal",
                                                       "Rotated 180",
                                                       "Mirrored vertical",
                                                       "Mirrored horizontal then rotated 90 CCW",
                                                       "Rotated 90 CW",
                                                       "Mirrored horizontal then rotated 90 CW",
                                                       "Rotated 90 CCW"};
  const int orientation = read_orientation(body);
  if (orientation == upright) return {};
  return fmt::format(R"({{"Image Orientation": "{}"}})", words.at(static_cast<std::size_t>(orientation)));
}

// Of a body that was decoded.
std::string type_of(std::string_view body) {
  switch (find_image_format(body).value()) {
    case ImageFormat::jpeg:
      return "jpg";
    case ImageFormat::png:
      return "png";
    case ImageFormat::webp:
      return "webp";
  }
  return "";
}

// Decoding tells a picture from a page that calls itself one, whatever the server said of it.
std::variant<Image, Failure> decode(std::string_view body, const WantedPixels& wanted) {
  Image image;
  const auto failure = decode_image_into(image, body, {}, wanted);
  if (!failure) return image;
  if (failure->error == DecodeError::not_an_image)
    return Failure{FailureKind::not_an_image, find_other_kind(body).value_or("")};
  return Failure{FailureKind::broken_image, to_string(failure->error)};
}

// Where nothing is resized, a column is enough to see whether a JPEG is whole: the others' coefficients are read, but
// not turned into pixels.
WantedPixels needed_for(Resize mode) {
  if (mode != Resize::none) return {.on_white = true};
  return {.columns = [](int, int) { return PixelRange{0, 1}; }};
}

}  // namespace

std::optional<Image> resize_to_store(const Image& image, Resize mode, int size) {
  constexpr int max_side = 65500;
  const auto [shorter, longer] = std::minmax(image.width, image.height);
  const double scale = static_cast<double>(size) / (mode == Resize::border ? longer : shorter);
  const int width = scale_side(image.width, scale), height = scale_side(image.height, scale);
  if (std::max(width, height) > max_side) return std::nullopt;
  Image resized = resize_image(image, width, height);
  if (mode == Resize::center_crop) return crop_center(resized, size, size);
  if (mode == Resize::border) return add_borders(resized, size, size, 255);
  return resized;
}

std::variant<StoredImage, Failure> prepare_image(std::string body, const std::string& expected_hash,
                                                 const DownloadConfig& config) {
  if (auto failure = check_hash(body, expected_hash)) return std::move(*failure);
  auto decoded = decode(body, needed_for(config.resize));
  if (auto* const failure = std::get_if<Failure>(&decoded)) return std::move(*failure);
  const Image& original = std::get<Image>(decoded);

  StoredImage stored;
  stored.sha256 = hex_digest(body, EVP_sha256());
  stored.original_width = original.width;
  stored.original_height = original.height;
  if (config.resize == Resize::none) {
    stored.type = type_of(body);
    stored.width = original.width;
    stored.height = original.height;
    stored.bytes = std::move(body);
    return stored;
  }
  const auto resized = resize_to_store(original, config.resize, config.image_size);
  if (!resized) return Failure{FailureKind::broken_image, "too long and thin"};
  stored.type = "jpg";
  stored.width = resized->width;
  stored.height = resized->height;
  stored.exif = exif_of(body);
  stored.bytes = encode_jpeg(*resized, config.quality);
  return stored;
}

}  // namespace millrace
