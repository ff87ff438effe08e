#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/core/files.h"
#include "millrace/dataset/manifest.h"
#include "millrace/dataset/sample.h"
#include "millrace/io/hdf5.h"
#include "millrace/latents/encoding_shape.h"
#include "millrace/latents/latent_cache.h"

// One file of a latent cache: NAME.h5 with the values and NAME.json, which says what is in it.
namespace millrace {

// NAME.json.
struct LatentFileInfo {
  fs::path path;  // of NAME.h5
  std::string archive;
  std::uint64_t archive_bytes = 0;  // 0 = unknown
  std::string archive_path;         // without secrets, where archive_bytes is unknown
  std::uint64_t bytes = 0;
  Hash128 digest;
  std::vector<std::uint64_t> rows;                               // of the archive, in the order of the data sets
  std::vector<std::pair<std::uint64_t, RejectReason>> rejected;  // rows without an encoding
  std::map<std::uint64_t, std::string> non_finite;  // row -> id of encodings that are stored, but not finite
};

LatentFileInfo read_latent_file_info(const fs::path& json_path);

// Collects rows of one archive. Until `publish` there is only a temporary file, gone with the writer.
class LatentFileWriter {
 public:
  LatentFileWriter(const fs::path& cache, const Archive& archive, const CacheDescription& description);
  ~LatentFileWriter();
  LatentFileWriter(LatentFileWriter&&) noexcept;
  LatentFileWriter& operator=(LatentFileWriter&&) = delete;

  struct Row {
    std::uint64_t row = 0;
    std::string id, caption;
    std::span<const std::uint16_t> moments, text;
    bool finite = true;
    std::span<const std::int32_t> tokens = {};  // in place of `text`, by the description's shape
  };
  void add(const Row& row);
  void reject(std::uint64_t row, RejectReason reason);
  std::size_t rows() const { return info_.rows.size(); }  // without the rejected ones
  void publish();

 private:
  void start();
  void flush();
  std::string name() const;

  LatentFileInfo info_;
  fs::path folder_, temporary_;
  EncodingShape shape_;
  std::string fingerprint_;
  std::unique_ptr<Hdf5Writer> file_;  // made with the first row
  // Rows not yet handed to HDF5.
  std::vector<std::string> ids_, captions_;
  std::vector<std::int64_t> numbers_;
  std::vector<std::uint16_t> moments_, text_;
  std::vector<std::int32_t> tokens_;
};

// An opened NAME.h5. Safe to use from several threads.
class LatentFile {
 public:
  // Error(io) unless the file has these rows and shapes. Its digest must have been checked.
  LatentFile(const LatentFileInfo& info, const EncodingShape& shape);
  EncodedSample read(std::size_t index) const;

 private:
  Hdf5Reader file_;
  EncodingShape shape_;
  std::vector<std::string> ids_;
};

}  // namespace millrace
