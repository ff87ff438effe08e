#include "millrace/image/png_text.h"

#include <zlib.h>

#include "millrace/core/error.h"

namespace millrace {
namespace {

constexpr std::string_view signature = "\x89PNG\r\n\x1a\n";
constexpr std::size_t header_bytes = 25;  // the chunk IHDR, which comes first
constexpr std::size_t frame_bytes = 12;   // length, type and CRC of a chunk

std::string big_endian(std::uint32_t number) {
  std::string bytes(4, '\0');
  for (int i = 0; i < 4; ++i) bytes[i] = static_cast<char>(number >> (24 - 8 * i));
  return bytes;
}

std::uint32_t big_endian_at(std::string_view bytes) {
  std::uint32_t number = 0;
  for (int i = 0; i < 4; ++i) number = number << 8 | static_cast<unsigned char>(bytes[i]);
  return number;
}

std::uint32_t crc_of(std::string_view bytes) {
  return static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));  // NOLINT: zlib's bytes
}

// Keyword, no compression, no language, the text.
std::string text_chunk(const std::string& keyword, const std::string& text) {
  using namespace std::string_literals;
  const auto body = "iTXt" + keyword + "\0\0\0\0\0"s + text;
  return big_endian(static_cast<std::uint32_t>(body.size() - 4)) + body + big_endian(crc_of(body));
}

// Keyword\0 flag method language\0 keyword\0 text; nothing for compressed ones, which are not ours.
void read_text(std::string_view data, PngText& texts) {
  const auto keyword_end = data.find('\0');
  if (keyword_end == std::string_view::npos || data.size() < keyword_end + 3 || data[keyword_end + 1] != 0) return;
  auto place = keyword_end + 3;
  for (int skipped = 0; skipped < 2; ++skipped) {
    place = data.find('\0', place);
    if (place == std::string_view::npos) return;
    ++place;
  }
  texts[std::string(data.substr(0, keyword_end))] = data.substr(place);
}

}  // namespace

std::string with_png_text(std::string_view png, const PngText& text) {
  const auto place = signature.size() + header_bytes;
  ensure(png.starts_with(signature) && png.size() > place, "a PNG file");
  std::string bytes(png.substr(0, place));
  for (const auto& [keyword, value] : text) bytes += text_chunk(keyword, value);
  return bytes.append(png.substr(place));
}

std::optional<PngText> read_png_text(std::string_view png) {
  if (!png.starts_with(signature)) return std::nullopt;
  PngText texts;
  for (png.remove_prefix(signature.size()); png.size() >= frame_bytes;) {
    const std::size_t length = big_endian_at(png);
    if (png.size() < frame_bytes + length) return std::nullopt;
    const auto body = png.substr(4, 4 + length);
    if (crc_of(body) != big_endian_at(png.substr(8 + length))) return std::nullopt;
    if (body.starts_with("IEND")) return texts;
    if (body.starts_with("iTXt")) read_text(body.substr(4), texts);
    png.remove_prefix(frame_bytes + length);
  }
  return std::nullopt;
}

}  // namespace millrace
