#pragma once
#include <cstddef>
#include <memory>

#include "millrace/core/files.h"
#include "millrace/dataset/manifest.h"
#include "millrace/dataset/source.h"

namespace millrace {

// Of latent files that a split's reader holds open: where several ranks have made a cache, the rows of a split may
// alternate between as many files.
inline constexpr std::size_t cached_files_of_a_reader = 16;

enum class CachedValues {
  full,       // encodings with ids, for training
  keys_only,  // only what Encoding::Values tells of them, for filling the cache
};

// Rows that the cache holds (rejected ones too) come from there, all others from `original`; without `original` a row
// that is missing or in a damaged file is an Error(io). Files are looked for whenever a split is opened, and their
// digests checked before anything else reads them; MANIFEST.json is read when an archive comes whose folder does not
// tell where it ends. With an `original` a damaged file is a warning and its rows are missing; where it has ended
// behind sound rows, the cache keeps that, and later readers do not open it to ask.
std::unique_ptr<SampleSource> make_cached_source(const fs::path& cache, const Manifest& manifest,
                                                 std::unique_ptr<SampleSource> original, CachedValues values);

}  // namespace millrace
