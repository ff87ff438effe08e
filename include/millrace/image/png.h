#pragma once
#include <filesystem>
#include <string>

#include "millrace/image/image.h"
#include "millrace/image/png_text.h"

namespace millrace {

// The image as a PNG file in memory (8-bit RGB).
std::string encode_png(const Image& image);
// Writes it atomically, with what it says about itself; Error(io) naming the path.
void write_png(const std::filesystem::path& path, const Image& image, const PngText& text = {});

}  // namespace millrace
