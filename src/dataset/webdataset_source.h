#pragma once
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "class_prompts.h"
#include "index_store.h"
#include "millrace/dataset/data_config.h"
#include "millrace/dataset/source.h"

namespace millrace {

// What is read of a sample.
struct TarRules {
  struct Caption {
    std::string name;                // a member, such as txt, or json.KEY
    std::optional<std::string> key;  // of the member json
  };
  std::vector<std::string> images;  // of these members the first one that is there
  std::vector<Caption> captions;    // of these all that are there; of a class data set one, the class
  bool needs_captions = true;
  bool with_json = false;
  const ClassPrompts* prompts = nullptr;  // null = the caption stands there itself
};

// Tar archives whose neighbouring members KEY.FIELD form samples. NOTE [Rules of a row]: the image is the first of jpg,
// png, jpeg, webp, the caption is txt (an empty one is a caption, a missing one is not) or, of a class data set, what
// the prompts say of cls; json is kept for the filters. `columns` names other members, and several for captions;
// json.KEY is a text, or a list of texts, in json.
class WebDatasetSource final : public SampleSource {
 public:
  // `prompts`: of a class data set. `indices`: where indices are kept.
  WebDatasetSource(const Manifest& manifest, const SourceConfig& config, std::optional<ClassPrompts> prompts,
                   IndexStore indices);
  std::unique_ptr<SplitReader> open(const Split& split, std::uint64_t first_row) const override;

 private:
  // For splits, read or made of the archive as it is, and shared by all who read them. One that nobody reads is let go
  // when others need its room: all of a large data set are gigabytes.
  std::shared_ptr<const TarIndex> index_of(std::uint32_t archive) const;
  // `index` does not fit the archive, whatever the times of change say: the next one is made anew.
  void distrust_index_of(std::uint32_t archive, const std::shared_ptr<const TarIndex>& index) const;
  void keep_for_later(const std::shared_ptr<const TarIndex>& index) const;
  // For an archive that is read whole; null = rows are passed over. Made only after a fault of the storage has closed
  // it once: then each fault would read from the archive's beginning.
  std::shared_ptr<const TarIndex> index_of_whole(std::uint32_t archive, std::uint64_t first_row) const;

  struct Indexed {
    std::mutex mutex;
    std::weak_ptr<const TarIndex> index;
    bool is_distrusted = false;
    bool has_restless_time = false;  // it changes, and nothing else does
    bool warned = false;             // that the archive is compressed
  };
  const Manifest& manifest_;
  const std::optional<ClassPrompts> prompts_;
  const TarRules rules_;
  const IndexStore store_;
  mutable std::mutex mutex_;
  mutable std::set<std::uint32_t> opened_;  // archives that are read whole
  mutable std::map<std::uint32_t, Indexed> indices_;
  mutable std::deque<std::shared_ptr<const TarIndex>> kept_;  // the newest last
};

}  // namespace millrace
