#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/core/files.h"
#include "millrace/dataset/manifest.h"
#include "millrace/latents/encoding_shape.h"
#include "millrace/latents/latent_file.h"

namespace millrace {

// Where a row's encoding lies, or why it has none.
struct CachedPlace {
  static constexpr std::uint32_t no_file = 0xFFFFFFFF;
  std::uint64_t row = 0;
  std::uint32_t file = no_file;
  std::uint32_t index = 0;  // in the file; of a rejected row its reason

  bool rejected() const { return file == no_file; }
  RejectReason reason() const { return static_cast<RejectReason>(index); }
  // Precedence among entries for one row, lowest first: a sample, a permanent rejection, one that may have been
  // temporary.
  int standing() const { return !rejected() ? 0 : may_be_gone(reason()) ? 2 : 1; }
};

// What a cache holds of one archive, as its NAME.json files say. Safe to use from several threads.
class CachedArchive {
 public:
  // Files that are not whole are left out with a warning. Error(usage) when the archive has another size than the one
  // that was encoded: another start would find the same.
  CachedArchive(const fs::path& cache, const Archive& archive, const EncodingShape& shape);

  // Whether no file was added since.
  bool up_to_date() const;
  // Rows of the archive, where its end was seen by remember_end().
  std::optional<std::uint64_t> end() const { return end_; }
  // The original has ended, unbroken, behind so many rows: later readers need not ask it. Where the cache cannot be
  // written, they will.
  void remember_end(std::uint64_t rows) const;
  // All that is known about a row, what holds first; more than one where it was asked for again.
  std::span<const CachedPlace> find(std::uint64_t row) const;
  // Id of a sample whose encoding is stored, but not finite.
  const std::string* non_finite(const CachedPlace& place) const;

  // The files that a reader is in, by their numbers: as long as they are held, they stay open. Where several ranks have
  // made a cache, each in files of its own, the rows of a split alternate between those.
  using Opened = std::map<std::uint32_t, std::shared_ptr<const LatentFile>>;
  // Error(io) when the file is damaged; its digest is checked before its first use.
  EncodedSample load(const CachedPlace& place, Opened& opened) const;
  // Nothing when the file is damaged, which is said once. StorageError when it cannot be read now.
  std::optional<EncodedSample> try_load(const CachedPlace& place, Opened& opened) const;

 private:
  struct File {
    explicit File(LatentFileInfo read);
    LatentFileInfo info;
    std::uint64_t last_row;
    std::atomic<bool> damaged = false;
    std::mutex mutex;
    bool verified = false;
    std::weak_ptr<const LatentFile> opened;

    void forget();  // what is open
  };
  void add(const fs::path& path, const Archive& archive);
  std::shared_ptr<const LatentFile> open(File& file) const;
  std::optional<std::uint64_t> find_end() const;

  const fs::path folder_;
  const fs::file_time_type modified_;
  const EncodingShape shape_;
  const std::uint64_t archive_bytes_;
  std::vector<CachedPlace> places_;  // sorted by row
  std::vector<std::unique_ptr<File>> files_;
  std::optional<std::uint64_t> end_;
};

}  // namespace millrace
