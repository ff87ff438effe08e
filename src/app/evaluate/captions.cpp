#include "evaluate/captions.h"

#include <algorithm>

#include "millrace/core/error.h"
#include "millrace/core/text.h"
#include "millrace/io/lists.h"

namespace millrace {

static std::string caption_column(const fs::path& file) {
  if (list_format(file.string()) == ListFormat::txt) return "url";  // what the reader calls a line
  const auto columns = ListReader(file).schema();
  for (const char* name : {"caption", "prompt"})
    if (std::find(columns.begin(), columns.end(), name) != columns.end()) return name;
  fail(Exit::io, "evaluate.prompts: {} has no column caption or prompt", file.string());
}

std::vector<std::string> read_captions(const std::filesystem::path& file) {
  if (!list_format(file.string()))
    fail(Exit::usage, "evaluate.prompts: {} is neither .txt nor .jsonl, .csv or .tsv", file.string());
  const auto column = caption_column(file);
  ListReader reader(file, {column});
  std::vector<std::string> captions;
  while (const auto row = reader.next()) {
    if (!reader.damage().empty()) fail(Exit::io, "evaluate.prompts: {}", reader.damage());
    const auto* text = std::get_if<std::string>(&row->front());
    if (!text || reader.is_nested(column))
      fail(Exit::io, "evaluate.prompts: {}: row {} has no caption", file.string(), captions.size() + 1);
    captions.push_back(valid_utf8(*text));
  }
  if (captions.empty()) fail(Exit::io, "evaluate.prompts: {} holds none", file.string());
  return captions;
}

}  // namespace millrace
