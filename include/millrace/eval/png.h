#pragma once
#include <filesystem>
#include <span>
#include <string>

#include "millrace/data/sample.h"

namespace millrace {

// The image as a PNG file in memory (8-bit RGB).
std::string encode_png(const Image& image);
// Writes it atomically; Error(io) naming the path.
void write_png(const std::filesystem::path& path, const Image& image);

// Images row by row in a nearly square grid, or in rows of `columns`, with 2 black pixels between the cells. All cells
// have the size of the largest image; smaller ones stand at the top left.
Image make_grid(std::span<const Image> images, int columns = 0);

}  // namespace millrace
