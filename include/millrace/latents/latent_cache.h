#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "millrace/core/files.h"
#include "millrace/latents/encoding_shape.h"

// A folder of encodings (docs/formats.md, "Latent cache").
//
// NOTE [A cache without locks]: rows are named by (archive, row of the archive), never by splits or ranks. Each writer
// makes files of its own: NAME.h5 first, then NAME.json, which says what the file holds and its digest. A file counts
// from the moment its NAME.json is there; NAME is made of the rows, so whoever encodes the same rows again replaces a
// file by the same file. A killed writer loses what it had not published, and nothing has to be repaired.
namespace millrace {

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

// Where the latent files of an archive lie.
fs::path latent_folder(const fs::path& cache, const std::string& archive);

// Where latent files lie until they are complete.
fs::path latent_scratch(const fs::path& cache);
// Removes abandoned files there (core/abandoned.h), which are of no use. Those beside an archive's latent files go when
// the archive is looked at.
void clear_latent_scratch(const fs::path& cache);

}  // namespace millrace
