#pragma once
#include <string_view>

#include "millrace/image/image.h"

// How a camera was held: EXIF's tag 0x0112, 1 (upright) to 8.
namespace millrace {

inline constexpr int upright = 1;

// Of a JPEG (APP1), PNG (eXIf) or WebP (EXIF) file; upright where nothing sensible is noted.
int read_orientation(std::string_view file);

// Turns and mirrors stored pixels so that the image is upright, as Pillow's ImageOps.exif_transpose.
void apply_orientation(Image& image, int orientation);

}  // namespace millrace
