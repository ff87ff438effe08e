#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/inspect.h"
#include "millrace/dataset/sample.h"
#include "millrace/text/tokenizer.h"

namespace millrace {

// Lengths of captions: in characters, and in tokens where there is a tokenizer.
class CaptionSurvey {
 public:
  // `pipeline`: folder whose tokenizer counts.
  explicit CaptionSurvey(const std::optional<std::string>& pipeline);
  void add(std::string_view caption);  // UTF-8
  // {"count", "empty", "characters": {"min", "median", "p95", "max"}, "tokens": {the same, "cut"}}; "cut" = captions
  // that lose tokens to the 77 of the text encoder.
  nlohmann::json report() const;

 private:
  std::optional<ClipTokenizer> tokenizer_;
  std::vector<std::int64_t> characters_, tokens_;
};

// Decodes every image of an archive and looks at its captions.
class SampleSurvey {
 public:
  explicit SampleSurvey(const InspectOptions& options);
  // A sample's caption, if it has one, comes before its image.
  void add_caption(std::string_view caption);
  void add_image(const std::string& id, std::string_view bytes);
  // A sample that training would leave out.
  void reject(const std::string& id, RejectReason reason, const std::string& detail = {});
  // Adds "images" {"decoded", "smallest", "largest" [width, height], "short_side": [{"from", "to", "images"}]},
  // "captions", "rejected" {REASON: samples} and "first_rejected"; writes the grid where one is wanted, else
  // Error(usage) naming `path`.
  void finish(nlohmann::json& report, const std::filesystem::path& path) const;

 private:
  nlohmann::json describe_images() const;

  const InspectOptions& options_;
  CaptionSurvey captions_;
  Image decoded_;                           // its memory is used again
  std::vector<std::pair<int, int>> sizes_;  // width, height
  std::string caption_;                     // of the image that comes next
  std::vector<Image> first_images_;         // squares for the grid
  std::vector<std::string> first_captions_;
  std::map<std::string, std::int64_t> rejected_;
  std::vector<std::string> first_rejected_;
};

// Writes the first images of `path` as one PNG, with a caption under each or without any. Error(usage) when there are
// none.
void write_grid(const std::filesystem::path& grid, const std::vector<Image>& images, const std::filesystem::path& path,
                const std::vector<std::string>& captions = {});

inline constexpr std::size_t grid_images = 64;

}  // namespace millrace
