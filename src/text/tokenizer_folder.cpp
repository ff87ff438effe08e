#include "millrace/text/tokenizer_folder.h"

#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/io/gunzip.h"
#include "tokenizer_bpe.h"
#include "tokenizer_special.h"

namespace millrace {

namespace {

using Json = nlohmann::ordered_json;

constexpr int merge_count = 49152 - 256 - 2;  // the file holds more; CLIP was trained with the first of them

// "left right" lines behind the header.
std::vector<std::string> read_merges(const std::filesystem::path& file) {
  std::istringstream lines(gunzip_file(file));
  std::vector<std::string> merges;
  std::string line;
  std::getline(lines, line);
  while (static_cast<int>(merges.size()) < merge_count && std::getline(lines, line)) merges.push_back(line);
  if (static_cast<int>(merges.size()) < merge_count) {
    throw Error(Exit::io, fmt::format("{}: {} merges instead of {}", file.string(), merges.size(), merge_count),
                "scripts/setup installs CLIP's vocabulary");
  }
  return merges;
}

// Byte symbols in the order of their characters' code points, the same as word ends, merged pairs, the two specials.
std::vector<std::string> list_tokens(const std::vector<std::string>& merges) {
  std::vector<std::string> tokens;
  const auto symbols = byte_symbols();
  for (const bool printable : {true, false}) {
    for (const std::string& symbol : symbols) {
      const bool below_256 = symbol.size() == 1 || static_cast<unsigned char>(symbol[0]) < 0xC4;
      if (below_256 == printable) tokens.push_back(symbol);
    }
  }
  for (int i = 0; i < 256; ++i) tokens.push_back(tokens[i] + "</w>");
  for (const std::string& merge : merges) {
    const std::size_t space = merge.find(' ');
    tokens.push_back(merge.substr(0, space) + merge.substr(space + 1));
  }
  tokens.emplace_back(clip_start_token);
  tokens.emplace_back(clip_end_token);
  return tokens;
}

std::string vocabulary_json(const std::vector<std::string>& tokens) {
  std::string text = "{";
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    text += (id ? ", " : "") + Json(tokens[id]).dump(-1, ' ', true) + ": " + std::to_string(id);
  }
  return text + "}";
}

Json added_token(const std::string& text) {
  return {{"content", text}, {"lstrip", false}, {"normalized", true}, {"rstrip", false}, {"single_word", false}};
}

Json typed_token(const std::string& text) {
  Json token = {{"__type", "AddedToken"}};
  token.update(added_token(text));
  return token;
}

Json special_tokens_map(const std::string& pad_token) {
  return {{"bos_token", added_token(clip_start_token)},
          {"eos_token", added_token(clip_end_token)},
          {"pad_token", pad_token},
          {"unk_token", added_token(clip_end_token)}};
}

// The hub's file names SD 1's pad token for both: special_tokens_map.json decides.
Json tokenizer_config() {
  return {{"add_prefix_space", false},
          {"bos_token", typed_token(clip_start_token)},
          {"do_lower_case", true},
          {"eos_token", typed_token(clip_end_token)},
          {"errors", "replace"},
          {"model_max_length", 77},
          {"pad_token", clip_end_token},
          {"tokenizer_class", "CLIPTokenizer"},
          {"unk_token", typed_token(clip_end_token)}};
}

}  // namespace

void write_clip_tokenizer_folder(const std::filesystem::path& bpe_gz, const std::filesystem::path& out_folder,
                                 const std::string& pad_token) {
  const std::vector<std::string> merges = read_merges(bpe_gz);
  std::string merges_text = "#version: 0.2\n";
  for (const std::string& merge : merges) merges_text += merge + "\n";
  make_directories(out_folder);
  write_file_atomically(out_folder / "vocab.json", vocabulary_json(list_tokens(merges)));
  write_file_atomically(out_folder / "merges.txt", merges_text);
  write_file_atomically(out_folder / "tokenizer_config.json", tokenizer_config().dump(2) + "\n");
  write_file_atomically(out_folder / "special_tokens_map.json", special_tokens_map(pad_token).dump(2) + "\n");
}

}  // namespace millrace
