#pragma once
#include <filesystem>
#include <vector>

#include "millrace/image/image.h"

namespace millrace {

// The png, jpg, jpeg and webp files (any case) of a folder, in byte order of their names, without the grid of
// `millrace generate`; folders in it are not searched. Error(io) when it cannot be read or holds none.
std::vector<std::filesystem::path> list_images(const std::filesystem::path& folder);

// RGB as Pillow's convert("RGB") gives it. Error(io) naming the file.
Image read_image(const std::filesystem::path& file);

}  // namespace millrace
