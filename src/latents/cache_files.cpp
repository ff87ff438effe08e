#include "cache_files.h"

#include "millrace/core/error.h"
#include "millrace/core/storage_error.h"

namespace millrace {

bool is_file(const fs::path& path) {
  std::error_code error;
  const bool there = fs::is_regular_file(path, error);
  check_storage(error, path);
  return there;
}

void check_cache_format(const nlohmann::json& document, const fs::path& path) {
  if (document.at("format") != 1)
    throw Error(Exit::io, fmt::format("{}: a latent cache of format {}", path.string(), document.at("format").dump()),
                "this version reads format 1");
}

}  // namespace millrace
