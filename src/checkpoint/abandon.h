#pragma once
#include <filesystem>

namespace millrace {

// Renames a checkpoint, or lines, of a time that is not continued to NAME.abandoned-*, and says so. Error(io).
void abandon(const std::filesystem::path& path);

}  // namespace millrace
