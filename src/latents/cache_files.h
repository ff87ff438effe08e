#pragma once
#include <nlohmann/json.hpp>

#include "millrace/core/files.h"

// The files that tell of a whole cache: CACHE.json and MANIFEST.json.
namespace millrace {

inline constexpr const char* description_name = "CACHE.json";

// StorageError where storage does not tell.
bool is_file(const fs::path& path);
// Error(io) naming `path` when `document` is of a format that this version does not read.
void check_cache_format(const nlohmann::json& document, const fs::path& path);

}  // namespace millrace
