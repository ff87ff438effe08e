#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "tokenizer_bpe.h"

// The special tokens of a tokenizer folder, read as transformers reads them.
namespace millrace {

// A text that is one token wherever it stands in a caption.
struct SpecialToken {
  std::string text;
  std::int32_t id;
  bool normalized;  // looked for after normalization (so in any case of letters), else in the raw caption
};

struct SpecialTokens {
  std::vector<SpecialToken> all;  // each text once
  std::int32_t start, end, pad;
};

// special_tokens_map.json goes before tokenizer_config.json; what neither names has CLIP's default.
SpecialTokens load_special_tokens(const std::filesystem::path& folder, const BytePairs& pairs);

}  // namespace millrace
