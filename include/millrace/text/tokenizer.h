#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "millrace/config/config.h"

namespace millrace {

inline constexpr int token_count = 77;  // ids of a caption, CLIP's context

struct TokenizerConfig {
  // hf: as transformers' fast tokenizer runs the folder's files. open_clip: as open_clip's SimpleTokenizer, which
  // cleans captions and knows neither the folder's pad token and added tokens nor its spelling of the specials.
  enum class Mode { hf, open_clip };
  Mode mode = Mode::hf;  // as a word also auto
  // auto: special_tokens_map.json, else tokenizer_config.json, else the vocabulary; in open_clip 0
  config::Auto<int> pad_id;

  void describe(config::Section& section);
};

// CLIP's byte-pair encoding. Safe to use from several threads.
class ClipTokenizer {
 public:
  // `folder` holds vocab.json and merges.txt, or tokenizer.json for both, and what there is of the files that name
  // special and added tokens: a diffusers pipeline's tokenizer/.
  static ClipTokenizer load(const std::filesystem::path& folder, const TokenizerConfig& config = {});
  ClipTokenizer(ClipTokenizer&&) noexcept;
  ~ClipTokenizer();

  // Caption (UTF-8) -> 77 ids: start, tokens cut to 75, end, padding.
  std::vector<std::int32_t> encode(std::string_view caption) const;
  // Tokens of a caption between start and end; of one that encode() cuts, some number above the 75 that it keeps.
  int count(std::string_view caption) const;
  int pad_id() const;
  int vocabulary_size() const;  // the largest id + 1

 private:
  struct Impl;
  explicit ClipTokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace
