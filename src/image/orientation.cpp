#include "millrace/image/orientation.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "millrace/image/file_kind.h"
#include "opencv.h"

namespace millrace {

namespace {

using namespace std::string_view_literals;

constexpr std::string_view exif_prefix = "Exif\0\0"sv;

enum class ByteOrder { little, big };

// The number in the first `count` bytes, which are there.
std::uint32_t number(std::string_view bytes, int count, ByteOrder order) {
  std::uint32_t value = 0;
  for (int i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(bytes[order == ByteOrder::big ? i : count - 1 - i]);
    value = value << 8 | byte;
  }
  return value;
}

std::string_view from(std::string_view bytes, std::size_t place) {
  return bytes.substr(std::min(place, bytes.size()));
}

// Some writers put JPEG's prefix into other containers, too.
std::string_view without_prefix(std::string_view payload) {
  if (payload.starts_with(exif_prefix)) payload.remove_prefix(exif_prefix.size());
  return payload;
}

// JPEG: the segments up to the first scan.
std::string_view exif_of_jpeg(std::string_view file) {
  constexpr int app1 = 0xE1, start_of_scan = 0xDA;
  std::string_view rest = from(file, 2);
  while (rest.size() >= 4 && rest[0] == '\xFF') {
    const int marker = static_cast<unsigned char>(rest[1]);
    if (marker == 0xFF) {  // a fill byte
      rest.remove_prefix(1);
      continue;
    }
    const std::size_t length = number(rest.substr(2), 2, ByteOrder::big);
    const std::string_view payload = rest.substr(4, std::max<std::size_t>(length, 2) - 2);
    if (marker == start_of_scan) break;
    if (marker == app1 && payload.starts_with(exif_prefix)) return payload.substr(exif_prefix.size());
    rest = from(rest, 2 + length);
  }
  return {};
}

// PNG: chunks of length, name, payload and checksum.
std::string_view exif_of_png(std::string_view file) {
  for (std::string_view rest = from(file, 8); rest.size() >= 12;) {
    const std::size_t length = number(rest, 4, ByteOrder::big);
    if (rest.substr(4, 4) == "eXIf") return without_prefix(rest.substr(8, length));
    rest = from(rest, 12 + length);
  }
  return {};
}

// WebP: chunks of name, length and payload, filled up to an even length.
std::string_view exif_of_webp(std::string_view file) {
  for (std::string_view rest = from(file, 12); rest.size() >= 8;) {
    const std::size_t length = number(rest.substr(4), 4, ByteOrder::little);
    if (rest.starts_with("EXIF")) return without_prefix(rest.substr(8, length));
    rest = from(rest, 8 + length + length % 2);
  }
  return {};
}

std::string_view exif_of(std::string_view file) {
  const auto format = find_image_format(file);
  if (!format) return {};
  switch (*format) {
    case ImageFormat::jpeg:
      return exif_of_jpeg(file);
    case ImageFormat::png:
      return exif_of_png(file);
    case ImageFormat::webp:
      return exif_of_webp(file);
  }
  return {};
}

// Looks through the first directory of a TIFF file, which EXIF is: entries of u16 tag, u16 type, u32 count, and four
// bytes that hold a value of 16 or 32 bits at their beginning. Like Pillow, this takes signed ones and no single byte.
int orientation_of_tiff(std::string_view tiff) {
  if (tiff.size() < 8 || !(tiff.starts_with("II") || tiff.starts_with("MM"))) return upright;
  const ByteOrder order = tiff.starts_with("II") ? ByteOrder::little : ByteOrder::big;
  std::string_view entries = from(tiff, number(tiff.substr(4), 4, order));
  if (entries.size() < 2) return upright;
  std::uint32_t left = number(entries, 2, order);
  entries.remove_prefix(2);
  for (; left > 0 && entries.size() >= 12; --left, entries.remove_prefix(12)) {
    if (number(entries, 2, order) != 0x0112) continue;
    const std::uint32_t type = number(entries.substr(2), 2, order);
    const int bytes = type == 3 || type == 8 ? 2 : type == 4 || type == 9 ? 4 : 0;
    const std::uint32_t value = number(entries.substr(8), bytes, order);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : upright;
  }
  return upright;
}

}  // namespace

int read_orientation(std::string_view file) {
  return orientation_of_tiff(exif_of(file));
}

void apply_orientation(Image& image, int orientation) {
  if (orientation >= 5) {  // the camera lay on a side
    Image turned = make_image(image.height, image.width);
    cv::transpose(as_mat(image), as_mat(turned));
    image = std::move(turned);
  }
  constexpr int top_to_bottom = 0, left_to_right = 1, both = -1;
  const cv::Mat pixels = as_mat(image);
  if (orientation == 2 || orientation == 6) cv::flip(pixels, pixels, left_to_right);
  if (orientation == 3 || orientation == 7) cv::flip(pixels, pixels, both);
  if (orientation == 4 || orientation == 8) cv::flip(pixels, pixels, top_to_bottom);
}

}  // namespace millrace
