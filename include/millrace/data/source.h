#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "millrace/data/config.h"
#include "millrace/data/manifest.h"
#include "millrace/data/sample.h"

namespace millrace {

// The fields of a tar's sample that can be its image; the first one that is there is taken.
inline constexpr std::array image_fields = {"jpg", "png", "jpeg", "webp"};

// A row of an archive: a sample, its encoding, or the reason why there is none. Of `ref`, id and hash are set.
using RawRow = std::variant<RawSample, Rejected, EncodedSample>;

// One unit being read, front to back.
class UnitReader {
 public:
  virtual ~UnitReader() = default;
  // Nothing at the end of the unit. A broken archive ends it with one Rejected{archive_error}.
  virtual std::optional<RawRow> next() = 0;
};

// Where samples come from. Safe to use from several threads; each UnitReader belongs to one.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  // Starts at row `first_row` of the unit (rows are counted within the unit).
  virtual std::unique_ptr<UnitReader> open(const Unit& unit, std::uint64_t first_row) const = 0;
};

// The source that `config.type` names; `manifest` must outlive it. `resolution` is the side of synthetic images.
// `index` = data.index, where the indices of tars are kept. Error(usage) for a type that holds no images, Error(io)
// when the captions of classes cannot be read.
std::unique_ptr<SampleSource> make_source(const SourceConfig& config, const Manifest& manifest, int resolution,
                                          const std::string& index = "never");

}  // namespace millrace
