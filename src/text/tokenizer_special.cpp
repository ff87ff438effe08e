#include "tokenizer_special.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/text.h"
#include "millrace/io/json.h"

namespace millrace {

namespace {

using nlohmann::json;

json read_if_there(const fs::path& file) {
  return fs::exists(file) ? read_json_object(file) : json::object();
}

// A token is a text, or an object with its text and flags.
std::string text_of(const json& token, const fs::path& folder) {
  const json& text = token.is_object() ? token.value("content", json()) : token;
  if (!text.is_string())
    fail(Exit::io, "{}: a special token is neither a text nor an object with content", folder.string());
  return text;
}

void check_flags(const json& token, const fs::path& folder) {
  for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
    if (token.is_object() && token.value(flag, false)) {
      fail(Exit::usage, "{}: special token {} has {}, which is not supported", folder.string(), token.dump(), flag);
    }
  }
}

// The files that name tokens by their roles.
struct TokenizerFiles {
  fs::path folder;
  json config, map;

  json find(const char* role) const { return map.contains(role) ? map[role] : config.value(role, json()); }
  // Objects of the configuration are none yet when transformers looks at what is special.
  json find_text(const char* key) const {
    const json token = find(key);
    return token.is_object() && !map.contains(key) ? json() : token;
  }
};

// transformers does not read special_tokens_map.json where tokenizer_config.json lists the added tokens.
TokenizerFiles read_tokenizer_files(const fs::path& folder) {
  TokenizerFiles files{folder, read_if_there(folder / "tokenizer_config.json"), json::object()};
  if (!files.config.contains("added_tokens_decoder")) files.map = read_if_there(folder / "special_tokens_map.json");
  return files;
}

// Whether transformers takes a token without flags, as added_tokens.json has them, for a special one.
bool is_named_special(const std::string& text, const TokenizerFiles& files) {
  const auto is_text = [&](const json& token) { return !token.is_null() && text_of(token, files.folder) == text; };
  constexpr std::array roles = {"bos_token", "eos_token", "unk_token", "sep_token",
                                "pad_token", "cls_token", "mask_token"};
  const auto lists = {files.config.value("extra_special_tokens", json()),
                      files.config.value("additional_special_tokens", json()),
                      files.map.value("extra_special_tokens", json())};
  return std::ranges::any_of(roles, [&](const char* role) { return is_text(files.find_text(role)); }) ||
         std::ranges::any_of(lists,
                             [&](const json& list) { return list.is_array() && std::ranges::any_of(list, is_text); });
}

// The tokens that the files add to the vocabulary, by the ids that stand there.
using AddedTokens = std::map<std::int64_t, json>;

std::int64_t parse_id(const std::string& text, const fs::path& folder) {
  const auto id = parse_number<std::int64_t>(text);
  if (!id) fail(Exit::io, "{}: tokenizer_config.json: added_tokens_decoder: '{}' is no id", folder.string(), text);
  return *id;
}

std::int64_t read_id(const json& id, const fs::path& file) {
  if (!id.is_number_integer()) fail(Exit::io, "{}: an added token's id is {}", file.string(), id.dump());
  return id;
}

AddedTokens read_added_tokens(const TokenizerFiles& files) {
  AddedTokens added;
  if (const auto all = files.config.find("added_tokens_decoder"); all != files.config.end()) {
    for (const auto& [id, token] : all->items()) added[parse_id(id, files.folder)] = token;
    return added;
  }
  const fs::path texts_file = files.folder / "added_tokens.json", whole_file = files.folder / "tokenizer.json";
  const json texts = read_if_there(texts_file), whole = read_if_there(whole_file);
  for (const auto& [text, id] : texts.items())
    added[read_id(id, texts_file)] = {{"content", text}, {"normalized", !is_named_special(text, files)}};
  for (const json& token : whole.value("added_tokens", json::array()))
    added[read_id(token.is_object() ? token.value("id", json()) : json(), whole_file)] = token;
  return added;
}

const SpecialToken* find_token(const std::vector<SpecialToken>& tokens, const std::string& text) {
  const auto found = std::ranges::find(tokens, text, &SpecialToken::text);
  return found == tokens.end() ? nullptr : &*found;
}

// In place of an earlier one with the same text.
void put(std::vector<SpecialToken>& tokens, SpecialToken token) {
  std::erase_if(tokens, [&](const SpecialToken& known) { return known.text == token.text; });
  tokens.push_back(std::move(token));
}

// NOTE [Added tokens]: what the vocabulary has keeps its id. The others follow the vocabulary without gaps, in the
// order of the ids that the files give them, as transformers' fast tokenizers number them.
// `are_used`: else they only give roles their ids.
std::vector<SpecialToken> number_added_tokens(const AddedTokens& added, const BytePairs& pairs, const fs::path& folder,
                                              bool are_used) {
  std::vector<SpecialToken> tokens;
  for (const auto& [listed_id, token] : added) {
    if (are_used) check_flags(token, folder);
    SpecialToken special{text_of(token, folder), 0,
                         token.is_object() && token.value("normalized", !token.value("special", false))};
    if (special.text.empty()) continue;
    const SpecialToken* known = find_token(tokens, special.text);
    special.id = known ? known->id : pairs.find(special.text);
    if (special.id < 0) special.id = next_id(tokens, pairs);
    if (are_used && special.id != listed_id)
      log::warning("{}: the added token '{}' has the id {} there, and gets {}, as in transformers", folder.string(),
                   special.text, listed_id, special.id);
    put(tokens, std::move(special));
  }
  return tokens;
}

}  // namespace

std::int32_t next_id(const std::vector<SpecialToken>& tokens, const BytePairs& pairs) {
  std::int32_t next = pairs.size();
  for (const SpecialToken& token : tokens) next = std::max(next, token.id + 1);
  return next;
}

SpecialTokens load_special_tokens(const fs::path& folder, const BytePairs& pairs, bool with_added) {
  const TokenizerFiles files = read_tokenizer_files(folder);
  const auto added = number_added_tokens(read_added_tokens(files), pairs, folder, with_added);
  SpecialTokens tokens{.all = {}, .start = 0, .end = 0, .pad = 0};
  if (with_added) tokens.all = added;
  // NOTE [Plain texts]: a token given as plain text is looked for in the raw caption, one given as an object as its
  // flag "normalized" says; of two roles with the same text the later one decides. So with SD 1's files "<|endoftext|>"
  // is found in lower case only, with SD 2's in any case, and SD 2's pad "!" takes every "!" of a caption. Where the
  // text is that of an added token, the flags of that decide.
  const auto id_of_role = [&](const char* role, const char* fallback) {
    json token = files.find(role);
    if (token.is_null()) token = fallback;
    const std::string text = text_of(token, folder);
    if (const SpecialToken* listed = find_token(added, text)) return listed->id;
    check_flags(token, folder);
    const SpecialToken special{text, pairs.find(text), token.is_object() && token.value("normalized", false)};
    if (special.id < 0) fail(Exit::io, "{}: {} '{}' is not in the vocabulary", folder.string(), role, text);
    put(tokens.all, special);
    return special.id;
  };
  tokens.start = id_of_role("bos_token", clip_start_token);
  tokens.end = id_of_role("eos_token", clip_end_token);
  id_of_role("unk_token", clip_end_token);
  tokens.pad = id_of_role("pad_token", clip_end_token);
  return tokens;
}

}  // namespace millrace
