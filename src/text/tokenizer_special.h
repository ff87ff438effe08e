#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tokenizer_bpe.h"

// The special tokens of a tokenizer folder, read as transformers reads them.
namespace millrace {

// CLIP's own, for roles that no file names a token of.
inline constexpr const char *clip_start_token = "<|startoftext|>", *clip_end_token = "<|endoftext|>";

// A text that is one token wherever it stands in a caption.
struct SpecialToken {
  std::string text;
  std::int32_t id;
  bool normalized;  // looked for after normalization (so in any case of letters), else in the raw caption
};

struct SpecialTokens {
  std::vector<SpecialToken> all;  // each text once: those with a role, and what was added to the vocabulary
  std::int32_t start, end, pad;
};

// Behind the vocabulary and these tokens.
std::int32_t next_id(const std::vector<SpecialToken>& tokens, const BytePairs& pairs);

// Added tokens are those of tokenizer_config.json, if it lists them, else of added_tokens.json and tokenizer.json. For
// the roles special_tokens_map.json goes before tokenizer_config.json, unless that lists the added tokens; what neither
// names has CLIP's default. Without `with_added` only what has a role is
// in `all`.
SpecialTokens load_special_tokens(const std::filesystem::path& folder, const BytePairs& pairs, bool with_added);

}  // namespace millrace
