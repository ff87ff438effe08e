#include "millrace/text/tokenizer.h"

#include <algorithm>
#include <bitset>
#include <span>
#include <utility>

#include "caption_cleaning.h"
#include "millrace/core/error.h"
#include "tokenizer_bpe.h"
#include "tokenizer_special.h"
#include "unicode.h"

namespace millrace {

namespace {

using Ids = std::vector<std::int32_t>;

// Tokens that are looked for at every byte of a caption.
struct SoughtTokens {
  std::vector<SpecialToken> tokens;
  std::bitset<256> first_bytes;  // of their texts, which as a rule are one or two

  void add(SpecialToken token) {
    first_bytes.set(static_cast<unsigned char>(token.text.front()));
    tokens.push_back(std::move(token));
  }
};

// The longest of the tokens that `text` starts with.
const SpecialToken* match(std::string_view text, const SoughtTokens& sought) {
  const SpecialToken* best = nullptr;
  if (!sought.first_bytes[static_cast<unsigned char>(text.front())]) return best;
  for (const SpecialToken& token : sought.tokens) {
    if (text.starts_with(token.text) && (!best || token.text.size() > best->text.size())) best = &token;
  }
  return best;
}

// Cuts `text` at special tokens: `on_text` gets what is between them, `on_token` their ids.
template <class OnText, class OnToken>
void split_off(std::string_view text, const SoughtTokens& tokens, OnText on_text, OnToken on_token) {
  std::size_t start = 0;
  for (std::size_t i = 0; i < text.size();) {
    const SpecialToken* token = match(text.substr(i), tokens);
    if (!token) {
      ++i;
      continue;
    }
    if (i > start) on_text(text.substr(start, i - start));
    on_token(token->id);
    start = i += token->text.size();
  }
  if (start < text.size()) on_text(text.substr(start));
}

std::size_t run_length(std::string_view text, CharacterClass wanted) {
  std::size_t length = 0;
  for (std::size_t position = 0; position < text.size(); length = position) {
    if (next_class(text, position) != wanted) break;
  }
  return length;
}

// Pieces that the splitting rule knows by name: the specials (where they were not split off before) and contractions.
// open_clip's rule ignores case, to which the long s is an s, though its lower case is itself.
constexpr std::string_view hf_literals[] = {
    clip_start_token, clip_end_token, "'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
constexpr std::string_view open_clip_literals[] = {
    "<start_of_text>", "<end_of_text>", "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'\u017F", "<\u017Ftart_of_text>"};

using Literals = std::span<const std::string_view>;

std::size_t literal_length(std::string_view text, Literals literals) {
  if (text[0] != '<' && text[0] != '\'') return 0;
  for (std::string_view literal : literals) {
    if (text.starts_with(literal)) return literal.size();
  }
  return 0;
}

}  // namespace

void TokenizerConfig::describe(config::Section& s) {
  s.key("mode", mode, {{"auto", Mode::hf}, {"hf", Mode::hf}, {"open_clip", Mode::open_clip}},
        "hf = as transformers runs the folder's files; open_clip = as SD 2 was trained; auto = hf");
  s.key("pad_id", pad_id, "id behind the end of a caption; auto = the pad token of the folder's files, in open_clip 0")
      .at_least(0);
}

struct ClipTokenizer::Impl {
  BytePairs pairs;
  bool open_clip;
  SoughtTokens raw, normalized;  // hf: looked for before and after normalization
  std::int32_t start, end, pad;
  std::int32_t vocabulary_size;

  Ids encode_caption(std::string_view caption) const;
  void encode_hf(std::string_view caption, Ids& ids) const;
  void encode_words(std::string_view text, Ids& ids) const;
  void encode_literal(std::string_view literal, Ids& ids) const;
};

// The start and all tokens, or more of them than are kept.
Ids ClipTokenizer::Impl::encode_caption(std::string_view caption) const {
  Ids ids{start};
  ids.reserve(2 * token_count);
  if (open_clip) {
    encode_words(clean_caption(caption), ids);
  } else {
    encode_hf(caption, ids);
  }
  return ids;
}

void ClipTokenizer::Impl::encode_hf(std::string_view caption, Ids& ids) const {
  const auto push = [&](std::int32_t id) { ids.push_back(id); };
  const auto words = [&](std::string_view text) { encode_words(text, ids); };
  split_off(
      caption, raw, [&](std::string_view text) { split_off(normalize_caption(text), normalized, words, push); }, push);
}

// Contractions, runs of letters, single numbers, runs of anything else; spaces only separate.
void ClipTokenizer::Impl::encode_words(std::string_view text, Ids& ids) const {
  const Literals literals = open_clip ? Literals(open_clip_literals) : Literals(hf_literals);
  while (!text.empty() && ids.size() < token_count) {  // more tokens would be cut off anyway
    std::size_t length = literal_length(text, literals);
    if (length > 0) {
      encode_literal(text.substr(0, length), ids);
      text.remove_prefix(length);
      continue;
    }
    const CharacterClass kind = next_class(text, length);
    if (kind == CharacterClass::letter || kind == CharacterClass::other) length = run_length(text, kind);
    if (kind != CharacterClass::space) pairs.encode(text.substr(0, length), ids);
    text.remove_prefix(length);
  }
}

// Here open_clip takes a special token for itself; where transformers has not split it off, it is three words: "<|",
// "endoftext", "|>".
void ClipTokenizer::Impl::encode_literal(std::string_view literal, Ids& ids) const {
  if (open_clip && literal == open_clip_literals[0]) return ids.push_back(start);
  if (open_clip && literal == open_clip_literals[1]) return ids.push_back(end);
  if (open_clip || literal[0] == '\'') return pairs.encode(literal, ids);
  pairs.encode(literal.substr(0, 2), ids);
  pairs.encode(literal.substr(2, literal.size() - 4), ids);
  pairs.encode(literal.substr(literal.size() - 2), ids);
}

ClipTokenizer ClipTokenizer::load(const std::filesystem::path& folder, const TokenizerConfig& config) {
  const bool one_file =
      !std::filesystem::exists(folder / "vocab.json") && std::filesystem::exists(folder / "tokenizer.json");
  BytePairs pairs = one_file ? BytePairs::load(folder / "tokenizer.json")
                             : BytePairs::load(folder / "vocab.json", folder / "merges.txt");
  // open_clip has its own vocabulary and special tokens, and no added ones.
  const bool open_clip = config.mode == TokenizerConfig::Mode::open_clip;
  const SpecialTokens special = load_special_tokens(folder, pairs, /*with_added=*/!open_clip);
  const std::int32_t size = open_clip ? pairs.size() : next_id(special.all, pairs);
  auto impl =
      std::make_unique<Impl>(Impl{std::move(pairs), open_clip, {}, {}, special.start, special.end, special.pad, size});
  for (SpecialToken token : special.all) {
    if (token.normalized) token.text = normalize_caption(token.text);
    if (!token.text.empty()) (token.normalized ? impl->normalized : impl->raw).add(token);
  }
  impl->pad = config.pad_id.value_or(open_clip ? 0 : special.pad);
  if (impl->pad < 0 || impl->pad >= size)
    fail(Exit::usage, "tokenizer.pad_id: {} is not an id of the vocabulary (0 to {})", impl->pad, size - 1);
  return ClipTokenizer(std::move(impl));
}

ClipTokenizer::ClipTokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ClipTokenizer::ClipTokenizer(ClipTokenizer&&) noexcept = default;
ClipTokenizer::~ClipTokenizer() = default;

std::vector<std::int32_t> ClipTokenizer::encode(std::string_view caption) const {
  Ids ids = impl_->encode_caption(caption);
  ids.resize(std::min<std::size_t>(ids.size(), token_count - 1));
  ids.push_back(impl_->end);
  ids.resize(token_count, impl_->pad);
  return ids;
}

int ClipTokenizer::count(std::string_view caption) const {
  return static_cast<int>(impl_->encode_caption(caption).size()) - 1;
}

int ClipTokenizer::pad_id() const {
  return impl_->pad;
}
int ClipTokenizer::vocabulary_size() const {
  return impl_->vocabulary_size;
}

}  // namespace millrace
