#include "evaluate/captions.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "millrace/core/error.h"
#include "millrace/core/text.h"
#include "millrace/io/lists.h"

namespace millrace {

static bool has_column(const CaptionList& list, const char* name) {
  return std::ranges::find(list.columns, name) != list.columns.end();
}

static std::string caption_column(const CaptionList& list, const fs::path& file) {
  if (list_format(file.string()) == ListFormat::txt) return "url";  // what the reader calls a line
  for (const char* name : {"caption", "prompt"})
    if (has_column(list, name)) return name;
  fail(Exit::io, "evaluate.prompts: {} has no column caption or prompt", file.string());
}

CaptionList read_captions(const std::filesystem::path& file) {
  if (!list_format(file.string()))
    fail(Exit::usage, "evaluate.prompts: {} is neither .txt nor .jsonl, .csv or .tsv", file.string());
  CaptionList list;
  if (list_format(file.string()) != ListFormat::txt) list.columns = ListReader(file).schema();
  const auto column = caption_column(list, file);
  std::vector<std::string> wanted = {column};
  if (has_column(list, "file")) wanted.emplace_back("file");
  ListReader reader(file, wanted);
  while (const auto row = reader.next()) {
    if (!reader.damage().empty()) fail(Exit::io, "evaluate.prompts: {}", reader.damage());
    const auto* text = std::get_if<std::string>(&row->front());
    if (!text) fail(Exit::io, "evaluate.prompts: {}: row {} has no caption", file.string(), list.captions.size() + 1);
    list.captions.push_back(valid_utf8(*text));
    if (row->size() < 2) continue;
    const auto* name = std::get_if<std::string>(&row->back());
    list.files.push_back(name ? *name : std::string());
  }
  if (list.captions.empty()) fail(Exit::io, "evaluate.prompts: {} holds none", file.string());
  return list;
}

std::vector<std::string> ignored_columns(const CaptionList& list, bool paints) {
  std::vector<std::string> ignored;
  if (has_column(list, "caption") && has_column(list, "prompt")) ignored.emplace_back("prompt");
  for (const char* name : {"seed", "negative_prompt"})
    if (paints && has_column(list, name)) ignored.emplace_back(name);
  return ignored;
}

static std::string name_in(const std::string& file) {
  return fs::path(file).filename().string();
}

bool names_any(std::span<const fs::path> pictures, const CaptionList& list) {
  std::set<std::string> names;
  for (const auto& picture : pictures) names.insert(picture.filename().string());
  return std::ranges::any_of(list.files, [&](const std::string& file) { return names.contains(name_in(file)); });
}

std::vector<std::string> captions_of(std::span<const fs::path> pictures, const CaptionList& list) {
  if (!names_any(pictures, list)) {
    if (list.captions.size() < pictures.size())
      fail(Exit::usage, "evaluate.prompts holds {} captions for {} pictures", list.captions.size(), pictures.size());
    return {list.captions.begin(), list.captions.begin() + std::ssize(pictures)};
  }
  std::map<std::string, std::vector<std::size_t>> rows_of;  // by the picture's name
  for (std::size_t i = 0; i < list.files.size(); ++i) rows_of[name_in(list.files[i])].push_back(i);
  std::vector<std::string> captions;
  for (const auto& picture : pictures) {
    const auto& rows = rows_of[picture.filename().string()];
    if (rows.empty())
      throw Error(Exit::usage, fmt::format("evaluate.prompts: no row has {} in its column file", picture.string()),
                  "rename the column where captions go by the order of the pictures' names");
    if (rows.size() > 1)
      fail(Exit::usage, "evaluate.prompts: rows {} and {} are both of {}", rows[0] + 1, rows[1] + 1, picture.string());
    captions.push_back(list.captions[rows[0]]);
  }
  return captions;
}

}  // namespace millrace
