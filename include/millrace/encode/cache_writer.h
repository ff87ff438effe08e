#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "millrace/dataset/manifest.h"
#include "millrace/encode/batch.h"
#include "millrace/latents/latent_cache.h"
#include "millrace/latents/latent_file.h"

namespace millrace {

// Adds encodings to a latent cache: one open file per archive, published when it has `rows_per_file` rows, when more
// than `max_open` archives are open (least recently used first), when another epoch of the data begins, or when it is
// told to. A row is kept once, even if it is read for several epochs before its file is published. Errors: Error(io).
class CacheWriter {
 public:
  // The cache must have its description, and `manifest` must outlive the writer. Allows as many open files as that
  // takes: for each archive its file, and an archive and a latent file that samples are read from.
  CacheWriter(const fs::path& cache, const Manifest& manifest, int rows_per_file, std::size_t max_open);

  // Row `row` of `batch` is the encoding of `sample`.
  void add(const TransformedSample& sample, const EncodedBatch& batch, std::int64_t row, bool finite);
  void reject(std::uint32_t archive, std::uint64_t row, RejectReason reason);
  void publish();
  // publish() for all archives but these: a stripe that has gone on does not come back.
  void publish_all_but(const std::set<std::uint32_t>& archives);

 private:
  LatentFileWriter& writer_of(std::uint32_t archive);
  bool is_new(std::uint32_t archive, std::uint64_t row);

  const fs::path cache_;
  const Manifest& manifest_;
  const std::size_t rows_per_file_, max_open_;
  const CacheDescription description_;
  std::list<std::pair<std::uint32_t, LatentFileWriter>> open_;  // most recently used first
  std::map<std::uint32_t, std::vector<bool>> added_;            // per archive: whether each row was
  std::uint32_t epoch_ = 0;                                     // the latest that has begun
};

}  // namespace millrace
