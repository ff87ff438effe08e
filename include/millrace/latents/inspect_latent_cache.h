#pragma once
#include <nlohmann/json.hpp>

#include "millrace/core/files.h"

namespace millrace {

// {"kind": "cache", "complete", "archives", "rows", "accepted", "rejected", "files", "bytes", "fingerprint",
// "problems"}; checks every digest.
nlohmann::json inspect_latent_cache(const fs::path& folder);

}  // namespace millrace
