#include "tokenizer_special.h"

#include <nlohmann/json.hpp>

#include "millrace/core/error.h"
#include "millrace/io/json.h"

namespace millrace {

namespace {

using nlohmann::json;

constexpr const char* default_start = "<|startoftext|>";
constexpr const char* default_end = "<|endoftext|>";

json read_if_there(const std::filesystem::path& file) {
  return std::filesystem::exists(file) ? read_json_object(file) : json::object();
}

// A token is a text, or an object with its text and flags.
std::string text_of(const json& token, const std::filesystem::path& folder) {
  const json& text = token.is_object() ? token.value("content", json()) : token;
  if (!text.is_string())
    fail(Exit::io, "{}: a special token is neither a text nor an object with content", folder.string());
  return text;
}

void check_flags(const json& token, const std::filesystem::path& folder) {
  for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
    if (token.is_object() && token.value(flag, false)) {
      fail(Exit::usage, "{}: special token {} has {}, which is not supported", folder.string(), token.dump(), flag);
    }
  }
}

// The tokens with their flags that newer versions write: "added_tokens_decoder" of tokenizer_config.json and
// "added_tokens" of tokenizer.json.
std::vector<json> added_tokens(const json& config, const std::filesystem::path& folder) {
  std::vector<json> added;
  for (const auto& token : config.value("added_tokens_decoder", json::object())) added.push_back(token);
  for (const auto& token : read_if_there(folder / "tokenizer.json").value("added_tokens", json::array()))
    added.push_back(token);
  return added;
}

// The one with the same text, else the token as it is.
json with_added_flags(const json& token, const std::vector<json>& added, const std::filesystem::path& folder) {
  for (const auto& candidate : added)
    if (text_of(candidate, folder) == text_of(token, folder)) return candidate;
  return token;
}

}  // namespace

SpecialTokens load_special_tokens(const std::filesystem::path& folder, const BytePairs& pairs) {
  const json config = read_if_there(folder / "tokenizer_config.json");
  const json map = read_if_there(folder / "special_tokens_map.json");
  const auto added = added_tokens(config, folder);
  SpecialTokens tokens;
  // NOTE [Plain texts]: a token given as plain text is looked for in the raw caption, one given as an object as its
  // flag "normalized" says; of two roles with the same text the later one decides. So with SD 1's files "<|endoftext|>"
  // is found in lower case only, with SD 2's in any case, and SD 2's pad "!" takes every "!" of a caption.
  const auto add = [&](const char* role, const char* fallback) {
    json token = map.contains(role) ? map[role] : config.value(role, json());
    if (token.is_null()) token = fallback;
    token = with_added_flags(token, added, folder);
    check_flags(token, folder);
    const SpecialToken special{text_of(token, folder), pairs.find(text_of(token, folder)),
                               token.is_object() && token.value("normalized", true)};
    if (special.id < 0) fail(Exit::io, "{}: {} '{}' is not in the vocabulary", folder.string(), role, special.text);
    std::erase_if(tokens.all, [&](const SpecialToken& known) { return known.text == special.text; });
    tokens.all.push_back(special);
    return special.id;
  };
  tokens.start = add("bos_token", default_start);
  tokens.end = add("eos_token", default_end);
  add("unk_token", default_end);
  tokens.pad = add("pad_token", default_end);
  return tokens;
}

}  // namespace millrace
