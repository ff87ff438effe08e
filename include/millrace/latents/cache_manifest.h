#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "millrace/core/files.h"
#include "millrace/dataset/manifest.h"

namespace millrace {

// The archives that finished preprocess runs have read: MANIFEST.json.
struct CacheManifest {
  struct Entry {
    Archive archive;          // as the run saw it; `rows` as plan_stripes wants them
    std::uint64_t total = 0;  // rows, a broken end included
    bool broken = false;      // the last row stands for a broken end
  };
  std::vector<Entry> entries;  // sorted by name
};

bool has_cache_manifest(const fs::path& folder);
std::optional<CacheManifest> try_read_cache_manifest(const fs::path& folder);
// `use(number, entry)` of each archive of `manifest` that a finished run has read.
void for_each_finished(const fs::path& folder, const Manifest& manifest,
                       const std::function<void(std::size_t number, const CacheManifest::Entry& entry)>& use);
void write_cache_manifest(const fs::path& folder, const CacheManifest& manifest);
// Adds a finished run's archives to those that earlier ones have listed, in place of what these say of the same, unless
// they have read more of it. Returns the names of the others that stay, as long as there are latents of them:
// `type=latents` reads these as well.
std::vector<std::string> add_to_cache_manifest(const fs::path& folder, const CacheManifest& finished);

// The manifest of `type=latents`: names, sizes and rows as online, so that the stripes come out the same. Error(io)
// naming `section` for a folder that is no complete cache.
Manifest make_latent_manifest(const fs::path& folder, std::optional<std::int64_t> limit,
                              const std::string& section = "data.train");

}  // namespace millrace
