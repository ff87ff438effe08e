#include "tokenizer_special.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "millrace/core/error.h"
#include "millrace/core/files.h"

namespace millrace {

namespace {

using nlohmann::json;

constexpr const char* default_start = "<|startoftext|>";
constexpr const char* default_end = "<|endoftext|>";

json read_json(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return json::object();
  json content = json::parse(read_file(file), nullptr, false);
  if (!content.is_object()) fail(Exit::io, "{}: not a JSON object", file.string());
  return content;
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

// Flags of the token with this text in "added_tokens_decoder" (written by newer versions), else the token as it is.
json with_added_flags(const json& token, const json& config, const std::filesystem::path& folder) {
  for (const auto& added : config.value("added_tokens_decoder", json::object())) {
    if (text_of(added, folder) == text_of(token, folder)) return added;
  }
  return token;
}

}  // namespace

SpecialTokens load_special_tokens(const std::filesystem::path& folder, const BytePairs& pairs) {
  const json config = read_json(folder / "tokenizer_config.json");
  const json map = read_json(folder / "special_tokens_map.json");
  SpecialTokens tokens;
  // NOTE [Plain texts]: a token given as plain text is looked for in the raw caption, one given as an object as its
  // flag "normalized" says; of two roles with the same text the later one decides. So with SD 1's files "<|endoftext|>"
  // is found in lower case only, with SD 2's in any case, and SD 2's pad "!" takes every "!" of a caption.
  const auto add = [&](const char* role, const char* fallback) {
    json token = map.contains(role) ? map[role] : config.value(role, json());
    if (token.is_null()) token = fallback;
    token = with_added_flags(token, config, folder);
    check_flags(token, folder);
    const SpecialToken special{text_of(token, folder), pairs.find(text_of(token, folder)),
                               token.is_object() && token.value("normalized", true)};
    if (special.id < 0) fail(Exit::io, "{}: {} '{}' is not in vocab.json", folder.string(), role, special.text);
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
