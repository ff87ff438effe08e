#pragma once
#include <filesystem>
#include <string>

#include "millrace/image/image.h"

namespace millrace {

// The image as a PNG file in memory (8-bit RGB).
std::string encode_png(const Image& image);
// Writes it atomically; Error(io) naming the path.
void write_png(const std::filesystem::path& path, const Image& image);

}  // namespace millrace
