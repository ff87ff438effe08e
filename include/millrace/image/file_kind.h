#pragma once
#include <optional>
#include <string>
#include <string_view>

// What a file is by its first bytes.
namespace millrace {

enum class ImageFormat { jpeg, png, webp };
// Of an image that can be decoded.
std::optional<ImageFormat> find_image_format(std::string_view file);

// "a GIF image", "an HTML page", "no bytes", of a file that cannot; nothing where its bytes tell nothing.
std::optional<std::string> find_other_kind(std::string_view file);

}  // namespace millrace
