#pragma once
#include <filesystem>
#include <string>

// What a file or folder that scores depend on is called in their protocol: its own name, wherever it lies, and what
// tells its content from another's. Error(io) naming what cannot be read.
namespace millrace {

// "captions.txt (xxh3 0123456789abcdef)". Of more than 256 MiB the size and 128 MiB of either end are hashed.
std::string content_name_of_file(const std::filesystem::path& file);
// "val2014 (40504 images, 6645013297 bytes)".
std::string content_name_of_images(const std::filesystem::path& folder);
// A folder of weights (.safetensors), settings and vocabulary (.json, .txt), all of them hashed as above.
std::string content_name_of_network(const std::filesystem::path& folder);

}  // namespace millrace
