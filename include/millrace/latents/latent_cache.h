#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "millrace/core/files.h"
#include "millrace/dataset/manifest.h"
#include "millrace/dataset/sample.h"
#include "millrace/dataset/source.h"

// A folder of encodings (docs/formats.md, "Latent cache").
//
// NOTE [A cache without locks]: rows are named by (archive, row of the archive), never by splits or ranks. Each writer
// makes files of its own: NAME.h5 first, then NAME.json, which says what the file holds and its digest. A file counts
// from the moment its NAME.json is there; NAME is made of the rows, so whoever encodes the same rows again replaces a
// file by the same file. A killed writer loses what it had not published, and nothing has to be repaired.
namespace millrace {

// Of one sample's encoding: moments in half precision, and what is kept of its caption.
struct EncodingShape {
  std::vector<std::int64_t> moments;  // (channels, h, w)
  std::vector<std::int64_t> text;     // (77, C): text embeddings in half precision; (77): tokens, i32
  bool operator==(const EncodingShape&) const = default;

  // Text embeddings are made by trainers.
  bool has_tokens() const { return text.size() == 1; }
  // In files.
  const char* text_name() const { return has_tokens() ? "tokens" : "text"; }
};

// The numbers in a tensor of this shape.
std::size_t count_of(const std::vector<std::int64_t>& shape);
std::size_t encoding_bytes(const EncodingShape& shape);

// What all rows of a cache have in common: CACHE.json, which is written first and never changes.
struct CacheDescription {
  nlohmann::json fingerprint;  // of everything that encodings depend on
  EncodingShape shape;
  std::vector<std::uint16_t> null_text;  // text embeddings of the empty caption, half precision; none with tokens
};

bool is_latent_cache(const fs::path& folder);
CacheDescription read_cache_description(const fs::path& folder);
// Makes the folder. A description that is there already stays.
void write_cache_description(const fs::path& folder, const CacheDescription& description);

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

// Where the latent files of an archive lie.
fs::path latent_folder(const fs::path& cache, const std::string& archive);

// Where latent files lie until they are complete.
fs::path latent_scratch(const fs::path& cache);
// Removes abandoned files there (core/abandoned.h), which are of no use. Those beside an archive's latent files go when
// the archive is looked at.
void clear_latent_scratch(const fs::path& cache);

// {"kind": "cache", "complete", "archives", "rows", "accepted", "rejected", "files", "bytes", "fingerprint",
// "problems"}; checks every digest.
nlohmann::json inspect_latent_cache(const fs::path& folder);

}  // namespace millrace
