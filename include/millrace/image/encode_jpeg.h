#pragma once
#include <string>

#include "millrace/image/image.h"

namespace millrace {

// Baseline JPEG, colours at half resolution (4:2:0), `quality` 1..100 as libjpeg has it.
std::string encode_jpeg(const Image& image, int quality);

}  // namespace millrace
