#pragma once
#include <optional>

#include "millrace/image/decode.h"

// One function per image format; `decode_image` chooses by magic bytes.
namespace millrace {

std::optional<DecodeFailure> decode_jpeg(std::string_view bytes, const ImageConfig& config, const WantedPixels& wanted,
                                         Image& image);
std::optional<DecodeFailure> decode_png(std::string_view bytes, const ImageConfig& config, const WantedPixels& wanted,
                                        Image& image);
std::optional<DecodeFailure> decode_webp(std::string_view bytes, const ImageConfig& config, const WantedPixels& wanted,
                                         Image& image);

// What is wrong with this size, before any pixel is decoded.
std::optional<DecodeFailure> check_size(std::int64_t width, std::int64_t height, const ImageConfig& config);

// Gives the image this size; what its pixels hold is left open.
void set_size(Image& image, int width, int height);

}  // namespace millrace
