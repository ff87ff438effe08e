#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>

// What a PNG says about itself: its iTXt chunks (UTF-8, not compressed), as every viewer and Pillow's Image.text show
// them. PNG specification 11.3.3.
namespace millrace {

using PngText = std::map<std::string, std::string>;  // keywords: 1 to 79 letters of ASCII

// The PNG file with these texts in front of its pixels.
std::string with_png_text(std::string_view png, const PngText& text);

// The texts of a whole PNG file; none when a chunk is damaged or the end is missing.
std::optional<PngText> read_png_text(std::string_view png);

}  // namespace millrace
