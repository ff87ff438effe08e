#pragma once
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

namespace millrace {

// The png, jpg, jpeg and webp files (any case) of a folder, in byte order of their names, without the grid of
// `millrace generate`; folders in it are not searched. Error(io) when it cannot be read or holds none.
std::vector<std::filesystem::path> list_images(const std::filesystem::path& folder);

// Names that are numbers, all of them, but in another order as such than as bytes (10.png before 2.png): the first that
// comes too late, and nothing where there is none.
std::optional<std::filesystem::path> find_late_number(std::span<const std::filesystem::path> files);

}  // namespace millrace
