#include "millrace/image/file_kind.h"

#include <algorithm>
#include <array>
#include <utility>

#include "millrace/core/text.h"

namespace millrace {

using namespace std::string_view_literals;

namespace {

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

}  // namespace

std::optional<ImageFormat> find_image_format(std::string_view file) {
  if (file.starts_with("\xFF\xD8\xFF")) return ImageFormat::jpeg;
  if (file.starts_with("\x89PNG\r\n\x1A\n")) return ImageFormat::png;
  if (file.starts_with("RIFF") && file.substr(0, 12).ends_with("WEBP")) return ImageFormat::webp;
  return {};
}

std::optional<std::string> find_other_kind(std::string_view file) {
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
    if (file.starts_with(magic)) return kind;
  }
  if (auto kind = media_kind(file)) return kind;
  if (auto kind = text_kind(file)) return kind;
  if (file.empty()) return "no bytes";
  return {};
}

}  // namespace millrace
