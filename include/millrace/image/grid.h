#pragma once
#include <span>
#include <string>

#include "millrace/image/image.h"

namespace millrace {

// Images row by row in a nearly square grid on black, with 2 pixels between the cells. All cells have the size of the
// largest image; smaller ones stand at the top left. Under each row of images stand their captions (UTF-8, as many as
// there are images, or none for a grid without them): up to three small lines of the cell's width, the third ending
// with dots where something is left out; "?" for letters outside ASCII. Above captions, images narrower than 96 pixels
// are enlarged, every pixel to a square of the same size, so that the letters have room.
Image make_grid(std::span<const Image> images, std::span<const std::string> captions = {});

}  // namespace millrace
