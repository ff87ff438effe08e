#include "abandon.h"

#include <fmt/format.h>

#include <cstdio>

#include "millrace/core/files.h"
#include "millrace/core/hash.h"
#include "millrace/core/log.h"
#include "millrace/core/process_name.h"
#include "millrace/core/storage_error.h"

namespace millrace {

// In containers a process may have the name of an earlier one.
static fs::path free_name(const fs::path& path) {
  for (int life = 0;; ++life) {
    const auto digest = hash64(fmt::format("{}{}", process_name(), life)) >> 32;
    auto name = fmt::format("{}.abandoned-{:08x}", path.string(), digest);
    if (!fs::exists(name)) return name;
  }
}

void abandon(const fs::path& path) {
  const auto name = free_name(path);
  if (std::rename(path.c_str(), name.c_str()) != 0) fail_errno("cannot rename", path);
  log::warning("{} is not continued: renamed to {}", path.string(), name.filename().string());
}

}  // namespace millrace
