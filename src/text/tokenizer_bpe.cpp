#include "tokenizer_bpe.h"

#include <queue>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/text.h"
#include "millrace/io/json.h"
#include "unicode.h"

namespace millrace {

namespace {

constexpr const char* end_of_word = "</w>";

bool is_printable(UChar32 byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

// A symbol of the word under way, in a list linked by positions.
struct Symbol {
  std::int32_t id;
  std::int32_t previous, next;  // -1 at the ends
};

// A pair that could be merged; outdated when one of its symbols has changed since.
struct Candidate {
  std::int32_t rank, left;
  std::int32_t left_id, right_id, merged_id;
  bool operator<(const Candidate& other) const {  // the queue gives the lowest rank first, from the left
    return rank != other.rank ? rank > other.rank : left > other.left;
  }
};

}  // namespace

std::array<std::string, 256> byte_symbols() {
  std::array<std::string, 256> symbols;
  UChar32 next = 256;
  for (UChar32 byte = 0; byte < 256; ++byte)
    symbols[byte] = to_utf8(icu::UnicodeString(is_printable(byte) ? byte : next++));
  return symbols;
}

BytePairs BytePairs::load(const std::filesystem::path& vocabulary, const std::filesystem::path& merges) {
  BytePairs pairs;
  try {
    pairs.learn_tokens(read_json(vocabulary));
  } catch (const nlohmann::json::exception& error) {
    fail(Exit::io, "{}: not a map from tokens to ids: {}", vocabulary.string(), error.what());
  }
  pairs.learn_bytes(vocabulary);
  pairs.learn_merges(read_file(merges), merges);
  return pairs;
}

BytePairs BytePairs::load(const std::filesystem::path& tokenizer_json) {
  BytePairs pairs;
  std::string merges;
  try {
    const auto model = read_json(tokenizer_json).at("model");
    if (model.value("type", "BPE") != "BPE") fail(Exit::io, "{}: not a byte-pair encoding", tokenizer_json.string());
    pairs.learn_tokens(model.at("vocab"));
    for (const auto& pair : model.at("merges"))  // ["t", "h"], or "t h" in older files
      merges += pair.is_array() ? pair.at(0).get<std::string>() + ' ' + pair.at(1).get<std::string>() + '\n'
                                : pair.get<std::string>() + '\n';
  } catch (const nlohmann::json::exception& error) {
    fail(Exit::io, "{}: not the file of a CLIP tokenizer: {}", tokenizer_json.string(), error.what());
  }
  pairs.learn_bytes(tokenizer_json);
  pairs.learn_merges(merges, tokenizer_json);
  return pairs;
}

std::int32_t BytePairs::find(std::string_view token) const {
  const auto found = vocabulary_.find(token);
  return found == vocabulary_.end() ? -1 : found->second;
}

std::int32_t BytePairs::require(std::string_view token, const std::filesystem::path& file) const {
  const std::int32_t id = find(token);
  if (id < 0) fail(Exit::io, "{}: token '{}' is not in the vocabulary", file.string(), token);
  return id;
}

void BytePairs::learn_tokens(const nlohmann::json& vocabulary) {
  const auto& tokens = vocabulary.get_ref<const nlohmann::json::object_t&>();
  vocabulary_.reserve(tokens.size());
  for (const auto& [token, id] : tokens) vocabulary_.emplace(token, id.get<std::int32_t>());
}

void BytePairs::learn_bytes(const std::filesystem::path& file) {
  const auto symbols = byte_symbols();
  for (std::size_t byte = 0; byte < symbols.size(); ++byte) {
    inner_[byte] = require(symbols[byte], file);
    last_[byte] = require(symbols[byte] + end_of_word, file);
  }
}

void BytePairs::learn_merges(std::string_view text, const std::filesystem::path& file) {
  merges_.reserve(vocabulary_.size());
  std::int32_t rank = 0;
  std::string merged;
  while (!text.empty()) {
    const std::string_view line = take_until(text, '\n');
    if (line.empty() || line.starts_with("#version")) continue;
    const std::size_t space = line.find(' ');
    if (space == line.npos) fail(Exit::io, "{}: line '{}' is not a pair of tokens", file.string(), line);
    const std::string_view left = line.substr(0, space), right = line.substr(space + 1);
    merged.assign(left).append(right);
    merges_.try_emplace(pair_key(require(left, file), require(right, file)), Merge{rank++, require(merged, file)});
  }
  refuse_missing_merges(file);
}

// A file that was cut short, or is empty, would spell captions out. Each token but those of bytes and a few specials is
// made by a merge.
void BytePairs::refuse_missing_merges(const std::filesystem::path& file) const {
  const std::size_t bytes = inner_.size() + last_.size(), specials = 256;
  if (vocabulary_.size() <= bytes + merges_.size() + specials) return;
  throw Error(Exit::io,
              fmt::format("{}: {} merges cannot make the {} tokens of the vocabulary", file.string(), merges_.size(),
                          vocabulary_.size()),
              "copy the tokenizer's folder again");
}

// NOTE [One pair at a time]: the best pair comes out of a queue and its neighbours are looked at again, so a word of n
// bytes takes n log n steps. Of equal pairs the leftmost is merged first, so that "aaa" becomes "aa" "a". That is
// transformers' rule; CLIP's bpe() merges all occurrences of the best pair before it looks for the next one. Both give
// the same, for a token is made by one pair, and pairs with it have been learnt later: what a merge brings up ranks
// behind the pair that is being merged, and waits until all its occurrences are done.
void BytePairs::encode(std::string_view word, std::vector<std::int32_t>& ids) const {
  thread_local std::vector<Symbol> symbols;
  std::priority_queue<Candidate> candidates;
  const auto consider = [&](std::int32_t left) {
    if (left < 0 || symbols[left].next < 0) return;
    const std::int32_t left_id = symbols[left].id, right_id = symbols[symbols[left].next].id;
    if (const auto merge = merges_.find(pair_key(left_id, right_id)); merge != merges_.end()) {
      candidates.push({merge->second.rank, left, left_id, right_id, merge->second.id});
    }
  };

  const auto length = static_cast<std::int32_t>(word.size());
  symbols.resize(length);
  for (std::int32_t i = 0; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(word[i]);
    symbols[i] = {i + 1 < length ? inner_[byte] : last_[byte], i - 1, i + 1 < length ? i + 1 : -1};
  }
  for (std::int32_t i = 0; i < length; ++i) consider(i);

  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Symbol& left = symbols[best.left];
    if (left.id != best.left_id || left.next < 0 || symbols[left.next].id != best.right_id) continue;
    Symbol& right = symbols[left.next];
    left.id = best.merged_id;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].previous = best.left;
    consider(left.previous);
    consider(best.left);
  }
  for (std::int32_t i = 0; i >= 0; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace millrace
