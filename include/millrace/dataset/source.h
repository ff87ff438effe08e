#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "millrace/core/storage_error.h"
#include "millrace/dataset/data_config.h"
#include "millrace/dataset/manifest.h"
#include "millrace/dataset/sample.h"

namespace millrace {

// The fields of a tar's sample that can be its image; the first one that is there is taken.
inline constexpr std::array image_fields = {"jpg", "png", "jpeg", "webp"};

// A row of an archive: a sample, its encoding, or the reason why there is none. Of `ref`, id and hash are set.
using RawRow = std::variant<RawSample, Rejected, EncodedSample>;

// The command behind a pipe: failed before the archive's end, for reasons of storage or of the archive. When the reader
// that threw it is asked again, it says that the archive is broken.
class CommandFailed : public StorageError {
 public:
  using StorageError::StorageError;
};

// One split being read, front to back.
class SplitReader {
 public:
  virtual ~SplitReader() = default;
  // Nothing at the end of the split. A broken archive ends it with one Rejected{archive_error}. StorageError when
  // storage or network fail: then another reader has to be opened at this row.
  virtual std::optional<RawRow> next() = 0;
};

// A split that holds this row alone, or none.
std::unique_ptr<SplitReader> make_one_row_reader(std::optional<Rejected> row);

// Where samples come from. Safe to use from several threads; each SplitReader belongs to one.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  // Starts at row `first_row` of the split (rows are counted within the split). StorageError as in next().
  virtual std::unique_ptr<SplitReader> open(const Split& split, std::uint64_t first_row) const = 0;
};

// The source of images that `config.type` names (latents name none); `manifest` must outlive it. `resolution` is the
// side of synthetic images. `index` = data.index, where the indices of tars are kept. Error(io) when the captions of
// classes cannot be read.
std::unique_ptr<SampleSource> make_image_source(const SourceConfig& config, const Manifest& manifest, int resolution,
                                                const std::string& index);

}  // namespace millrace
