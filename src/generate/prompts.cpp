#include "millrace/generate/prompts.h"

#include <algorithm>

#include "millrace/core/error.h"
#include "millrace/core/text.h"
#include "millrace/io/lists.h"

namespace millrace {
namespace {

constexpr auto kinds =
    "a text file with a prompt a line, or .jsonl, .csv or .tsv with prompt or caption, and maybe seed and "
    "negative_prompt";

// Text where its name says nothing.
ListFormat format_of(const std::filesystem::path& file) {
  for (const char* other : {".json", ".parquet"})
    if (lower(file.extension().string()) == other)
      throw Error(Exit::usage, fmt::format("{} is no list of prompts", file.string()), kinds);
  return list_format(file.string()).value_or(ListFormat::txt);
}

// Those that `file` has of the columns that say something about a picture; of .jsonl all, since any row may have them.
std::vector<std::string> columns_of(const std::filesystem::path& file, ListFormat format) {
  if (format == ListFormat::txt) return {"url"};  // what the reader calls a line
  std::vector<std::string> columns = {"prompt", "caption", "seed", "negative_prompt"};
  if (format == ListFormat::jsonl) return columns;
  const auto there = ListReader(file).schema();
  std::erase_if(columns, [&](const std::string& name) { return std::ranges::count(there, name) == 0; });
  return columns;
}

std::uint64_t seed_of(const Cell& cell, const std::string& where) {
  std::string text;
  if (const auto* number = std::get_if<std::int64_t>(&cell)) text = std::to_string(*number);
  if (const auto* number = std::get_if<std::uint64_t>(&cell)) text = std::to_string(*number);
  if (const auto* written = std::get_if<std::string>(&cell)) text = *written;
  const auto seed = parse_number<std::uint64_t>(text);
  if (!seed) fail(Exit::io, "{}: the seed is not a whole number >= 0", where);
  return *seed;
}

// The words of a row, over what holds where it has none.
void read_row(const std::vector<std::string>& columns, const std::vector<Cell>& cells, const std::string& where,
              ImageRequest& request) {
  const auto text_in = [&](const std::string& name) -> const std::string* {
    const auto column = std::ranges::find(columns, name) - columns.begin();
    if (column == std::ssize(columns)) return nullptr;
    return std::get_if<std::string>(&cells[static_cast<std::size_t>(column)]);
  };
  const std::string* prompt = nullptr;
  for (const char* name : {"prompt", "caption", "url"})
    if (!prompt) prompt = text_in(name);
  if (!prompt) fail(Exit::io, "{} has no prompt", where);
  request.prompt = valid_utf8(*prompt);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (std::holds_alternative<std::monostate>(cells[i])) continue;
    if (columns[i] == "seed" && cells[i] != Cell("")) request.seed = seed_of(cells[i], where);
    if (columns[i] != "negative_prompt") continue;
    const auto* negative = text_in(columns[i]);
    if (!negative) fail(Exit::io, "{}: negative_prompt is no text", where);
    request.negative_prompt = valid_utf8(*negative);
  }
}

}  // namespace

std::vector<ImageRequest> read_prompts(const std::filesystem::path& file, const ImageRequest& fallback) {
  const auto format = format_of(file);
  const auto columns = columns_of(file, format);
  const auto has = [&](const char* name) { return std::ranges::count(columns, name) > 0; };
  if (!has("prompt") && !has("caption") && !has("url"))
    throw Error(Exit::io, fmt::format("{} has no column prompt or caption", file.string()), kinds);
  ListReader reader(file, columns, format);
  std::vector<ImageRequest> requests;
  while (const auto cells = reader.next()) {
    if (!reader.damage().empty()) fail(Exit::io, "{}", reader.damage());
    auto& request = requests.emplace_back(fallback);
    request.seed += requests.size() - 1;
    read_row(columns, *cells, fmt::format("{}: row {}", file.string(), requests.size()), request);
  }
  if (requests.empty()) throw Error(Exit::io, fmt::format("{} holds none", file.string()), kinds);
  return requests;
}

}  // namespace millrace
