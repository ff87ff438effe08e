#include "millrace/download/image.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "millrace/core/error.h"
#include "millrace/data/decode.h"
#include "millrace/data/encode_jpeg.h"
#include "millrace/data/resize_image.h"
#include "text.h"

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

Image crop_center(const Image& image, int side) {
  Image out{side, side, Pixels(static_cast<std::size_t>(side) * side * 3)};
  const int left = (image.width - side) / 2, top = (image.height - side) / 2;
  for (int y = 0; y < side; ++y) {
    std::memcpy(&out.pixels[static_cast<std::size_t>(y) * side * 3],
                &image.pixels[(static_cast<std::size_t>(top + y) * image.width + left) * 3],
                static_cast<std::size_t>(side) * 3);
  }
  return out;
}

Image pad_white(const Image& image, int side) {
  Image out{side, side, Pixels(static_cast<std::size_t>(side) * side * 3, 255)};
  const int left = (side - image.width) / 2, top = (side - image.height) / 2;
  for (int y = 0; y < image.height; ++y) {
    std::memcpy(&out.pixels[(static_cast<std::size_t>(top + y) * side + left) * 3],
                &image.pixels[static_cast<std::size_t>(y) * image.width * 3],
                static_cast<std::size_t>(image.width) * 3);
  }
  return out;
}

// The side of `from` becomes `to`, the other one keeps the proportion.
int scaled(int other, int from, int to) {
  return std::max(1, static_cast<int>((static_cast<std::int64_t>(other) * to + from / 2) / from));
}

Image resize(const Image& image, Resize mode, int size) {
  const bool by_longer = mode == Resize::border;
  const int side = by_longer ? std::max(image.width, image.height) : std::min(image.width, image.height);
  const Image scaled_image = resize_image(image, scaled(image.width, side, size), scaled(image.height, side, size),
                                          TransformConfig::Interpolation::bicubic);
  if (mode == Resize::center_crop) return crop_center(scaled_image, size);
  return by_longer ? pad_white(scaled_image, size) : scaled_image;
}

std::string type_of(std::string_view body) {
  return body.starts_with("\xFF\xD8") ? "jpg" : body.starts_with("RIFF") ? "webp" : "png";
}

// Decoding tells a picture from a page that calls itself one, whatever the server said of it.
std::variant<Image, Failure> decode(std::string_view body, const WantedPixels& wanted) {
  Image image;
  const auto failure = decode_image_into(image, body, {}, wanted);
  if (!failure) return image;
  if (failure->reason == Reason::not_an_image)
    return Failure{FailureKind::not_an_image, failure->detail.starts_with("unknown bytes") ? "" : failure->detail};
  return Failure{FailureKind::broken_image, to_string(failure->reason)};
}

// A column is enough to see whether a JPEG is whole: the others' coefficients are read, but not turned into pixels.
WantedPixels needed_for(Resize mode) {
  if (mode != Resize::none) return {};
  return {.columns = [](int, int) { return PixelRange{0, 1}; }};
}

}  // namespace

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
  const Image resized = resize(original, config.resize, config.image_size);
  if (std::max(resized.width, resized.height) > 65500) return Failure{FailureKind::broken_image, "too long and thin"};
  stored.type = "jpg";
  stored.width = resized.width;
  stored.height = resized.height;
  stored.bytes = encode_jpeg(resized, config.quality);
  return stored;
}

}  // namespace millrace
