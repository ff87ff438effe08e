#pragma once
#include <map>
#include <mutex>

#include "millrace/data/source.h"
#include "tar_index.h"

namespace millrace {

// Tar archives whose neighbouring members KEY.FIELD form samples. NOTE [Rules of a row]: the image is the first of jpg,
// png, jpeg, webp, the caption is txt (an empty one is a caption, a missing one is not), json is kept for the filters.
class WebDatasetSource final : public SampleSource {
 public:
  // `with_json`: read the metadata too.
  WebDatasetSource(const Manifest& manifest, bool with_json) : manifest_(manifest), with_json_(with_json) {}
  std::unique_ptr<UnitReader> open(const Unit& unit, std::uint64_t first_row) const override;

 private:
  const TarIndex& index_of(std::uint32_t archive) const;

  struct Indexed {
    std::once_flag once;
    TarIndex index;
  };
  const Manifest& manifest_;
  bool with_json_;
  mutable std::mutex mutex_;
  mutable std::map<std::uint32_t, Indexed> indices_;
};

}  // namespace millrace
