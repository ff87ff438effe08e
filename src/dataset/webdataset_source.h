#pragma once
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "class_prompts.h"
#include "index_store.h"
#include "millrace/dataset/source.h"

namespace millrace {

// What is read of a sample.
struct TarRules {
  bool with_json = false;
  const ClassPrompts* prompts = nullptr;  // null = txt is the caption
};

// Tar archives whose neighbouring members KEY.FIELD form samples. NOTE [Rules of a row]: the image is the first of jpg,
// png, jpeg, webp, the caption is txt (an empty one is a caption, a missing one is not) or, of a class data set, what
// the prompts say of cls; json is kept for the filters.
class WebDatasetSource final : public SampleSource {
 public:
  // `with_json`: read the metadata too. `prompts`: of a class data set. `indices`: where indices are kept.
  WebDatasetSource(const Manifest& manifest, bool with_json, std::optional<ClassPrompts> prompts, IndexStore indices)
      : manifest_(manifest), with_json_(with_json), prompts_(std::move(prompts)), store_(std::move(indices)) {}
  std::unique_ptr<SplitReader> open(const Split& split, std::uint64_t first_row) const override;

 private:
  const TarIndex& index_of(std::uint32_t archive) const;

  struct Indexed {
    std::mutex mutex;
    std::optional<TarIndex> index;
  };
  const Manifest& manifest_;
  const bool with_json_;
  const std::optional<ClassPrompts> prompts_;
  const IndexStore store_;
  mutable std::mutex mutex_;
  mutable std::map<std::uint32_t, Indexed> indices_;
};

}  // namespace millrace
