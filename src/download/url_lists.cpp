#include "url_lists.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "millrace/core/error.h"
#include "millrace/core/text.h"
#include "millrace/core/units.h"
#include "millrace/io/net/urls.h"

namespace millrace {

namespace {

bool is_table(const std::string& name) {
  return name.ends_with(".parquet");
}

std::vector<fs::path> lists_in(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with('.')) continue;  // of another program: macOS writes ._NAME beside NAME
    if (entry.is_regular_file() && (is_table(name) || list_format(name))) files.push_back(entry.path());
  }
  if (files.empty()) {
    throw Error(Exit::io, fmt::format("no lists in the directory {}", directory.string()),
                "expected .parquet, .csv, .tsv, .jsonl or .txt, these also with .gz");
  }
  std::sort(files.begin(), files.end());
  return files;
}

// As written, else in other letter case: LAION has URL and TEXT, others url and text.
std::optional<std::size_t> find_column(const std::vector<std::string>& names, const std::string& wanted) {
  auto found = std::find(names.begin(), names.end(), wanted);
  if (found == names.end())
    found = std::find_if(names.begin(), names.end(), [&](const auto& name) { return lower(name) == lower(wanted); });
  if (found == names.end()) return std::nullopt;
  return static_cast<std::size_t>(found - names.begin());
}

std::string get_column(const std::vector<std::string>& names, const std::string& wanted, const char* key,
                       const fs::path& path) {
  if (const auto position = find_column(names, wanted)) return names[*position];
  throw Error(Exit::usage, fmt::format("{} has no column '{}'", path.string(), wanted),
              fmt::format("set download.columns.{}; the columns are {}", key, fmt::join(names, ", ")));
}

// Names that the metadata have a meaning of their own for.
bool is_reserved(const std::string& name) {
  static constexpr std::array<std::string_view, 11> names = {
      "url",   "caption", "key",    "status",         "error_message",   "jpg",
      "width", "height",  "sha256", "original_width", "original_height",
  };
  return std::find(names.begin(), names.end(), name) != names.end() || name == "exif";
}

std::string get_other(const std::vector<std::string>& names, const std::string& wanted, const fs::path& path) {
  std::string column = get_column(names, wanted, "others", path);
  if (!is_reserved(column)) return column;
  throw Error(Exit::usage,
              fmt::format("download.columns.others: '{}' of {} has the name of a column that every archive has", column,
                          path.string()),
              "leave it out, or rename it in the list");
}

struct ToText {
  std::string operator()(std::monostate) const { return {}; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return fmt::format("{}", value); }
  std::string operator()(const std::string& value) const { return valid_utf8(value); }
};

struct Schema {
  std::vector<std::string> names, binary;
  std::vector<std::string> text_lists, nested;  // lists of texts; other lists and maps
};

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Schema schema_of(const fs::path& path) {
  if (!is_table(path.string())) return {ListReader(path).schema(), {}, {}, {}};
  Schema schema;
  for (const ParquetColumn& column : parquet_schema(path)) {
    schema.names.push_back(column.name);
    if (column.holds_bytes && !column.is_text) schema.binary.push_back(column.name);
    if (column.is_nested) (column.is_text_list ? schema.text_lists : schema.nested).push_back(column.name);
  }
  return schema;
}

std::string get_caption(const Schema& schema, const std::string& wanted, const fs::path& path) {
  std::string column = get_column(schema.names, wanted, "caption", path);
  if (!contains(schema.nested, column)) return column;
  throw Error(
      Exit::usage,
      fmt::format("download.columns.caption: '{}' of {} holds lists or maps, and not of texts", column, path.string()),
      "name a column of texts, or of lists of texts, of which the first becomes the caption; null = none");
}

}  // namespace

std::vector<fs::path> expand_lists(const std::vector<std::string>& patterns) {
  std::vector<fs::path> files;
  for (const std::string& pattern : patterns) {
    for (const std::string& name : expand_braces(pattern)) {
      const fs::path path = local_path(name);
      if (path.empty()) {
        throw Error(Exit::io, fmt::format("download.urls: {} is no file", name),
                    "lists are read from files; images are what this command downloads");
      }
      if (!fs::exists(path)) fail(Exit::io, "download.urls: missing file {}", path.string());
      if (!fs::is_directory(path)) {
        files.push_back(path);
        continue;
      }
      for (const fs::path& file : lists_in(path)) files.push_back(file);
    }
  }
  return files;
}

std::optional<std::string> complaint_about_lists(const std::vector<fs::path>& lists) {
  constexpr std::uint64_t tolerable = 10'000'000'000;  // bytes: minutes
  std::uint64_t bytes = 0;
  std::error_code unknown;
  for (const fs::path& list : lists)
    if (const auto size = fs::file_size(list, unknown); !unknown && !is_table(list.string())) bytes += size;
  if (bytes <= tolerable) return std::nullopt;
  return fmt::format(
      "download.urls: {} of lists are no Parquet: at each start each rank reads them from their first line on, where "
      "Parquet is passed over by row groups",
      format_bytes(bytes));
}

UrlLists::UrlLists(const DownloadConfig& config) : config_(config), files_(expand_lists(config.urls)) {}

void UrlLists::check() const {
  for (const fs::path& path : files_) {
    open(path);
    if (config_.limit) return;
  }
}

UrlLists::Source UrlLists::open(const fs::path& path) const {
  const Schema schema = schema_of(path);
  const DownloadConfig::Columns& wanted = config_.columns;
  if (schema.names.empty() && !is_table(path.string())) {
    ListReader list(path);
    if (list.skip(1) == 0) return {std::move(list), {}, {}, {}, 0, false, {}, {}};
  }
  const bool is_plain = !is_table(path.string()) && list_format(path.string()) == ListFormat::txt;

  std::vector<std::string> columns = {is_plain ? "url" : get_column(schema.names, wanted.url, "url", path)};
  std::optional<std::size_t> caption, hash;
  if (wanted.caption && !is_plain) {
    caption = columns.size();
    columns.push_back(get_caption(schema, *wanted.caption, path));
  }
  const std::size_t named = columns.size();
  if (wanted.hash && !is_plain) {
    hash = columns.size();
    columns.push_back(get_column(schema.names, *wanted.hash, "hash", path));
  }

  const std::size_t first_other = columns.size();
  if (wanted.others.empty()) {
    for (const std::string& name : schema.names) {
      const bool used = std::find(columns.begin(), columns.begin() + static_cast<long>(named), name) !=
                        columns.begin() + static_cast<long>(named);
      if (!used && !contains(schema.binary, name) && !is_reserved(name)) columns.push_back(name);
    }
  } else {
    for (const std::string& name : wanted.others) columns.push_back(get_other(schema.names, name, path));
  }

  const std::vector<std::string> others(columns.begin() + static_cast<long>(first_other), columns.end());
  const std::string caption_name = caption ? columns[*caption] : "";
  if (is_table(path.string()))
    return {ParquetReader(path, columns), caption, hash, others, first_other, false, caption_name, schema.text_lists};
  const bool numbers_are_text = list_format(path.string()) != ListFormat::jsonl;
  return {ListReader(path, columns), caption, hash, others, first_other, numbers_are_text, caption_name, {}};
}

std::uint64_t UrlLists::rows_left() const {
  return config_.limit ? *config_.limit - rows_ : config_.rows_per_file;
}

void UrlLists::advance(std::uint64_t rows) {
  rows_ += rows;
  ++shard_;
}

ListSlice UrlLists::read() {
  ListSlice slice;
  slice.shard = shard_;
  const std::uint64_t most = std::min(config_.rows_per_file, rows_left());
  while (slice.rows.empty() && most > 0) {
    if (!source_) {
      if (file_ == files_.size()) break;
      source_.emplace(open(files_[file_++]));
    }
    const auto next = [&] { return std::visit([](auto& reader) { return reader.next(); }, source_->reader); };
    while (slice.rows.size() < most) {
      auto cells = next();
      if (!cells) break;
      slice.rows.push_back(make_row(std::move(*cells)));
    }
    slice.has_captions = source_->caption.has_value();
    slice.other_names.clear();
    for (const std::string& name : source_->other_names) slice.other_names.push_back(valid_utf8(name));
    if (slice.rows.empty()) source_.reset();
  }
  if (!slice.rows.empty()) advance(slice.rows.size());
  return slice;
}

bool UrlLists::skip() {
  const std::uint64_t most = std::min(config_.rows_per_file, rows_left());
  while (most > 0) {
    if (!source_) {
      if (file_ == files_.size()) return false;
      source_.emplace(open(files_[file_++]));
    }
    const std::uint64_t rows = std::visit([&](auto& reader) { return reader.skip(most); }, source_->reader);
    if (rows > 0) {
      advance(rows);
      return true;
    }
    source_.reset();
  }
  return false;
}

// Whether the present row's value is a list or a map, as JSON.
bool UrlLists::is_json(const std::string& column) const {
  if (const auto* const list = std::get_if<ListReader>(&source_->reader)) return list->is_nested(column);
  return contains(source_->text_lists, column);
}

void UrlLists::set_caption(ListRow& row, const Cell& cell) const {
  if (std::holds_alternative<std::monostate>(cell)) return;
  row.caption = std::visit(ToText(), cell);
  if (!is_json(source_->caption_name)) return;
  row.captions = *std::exchange(row.caption, std::nullopt);
  const auto texts = nlohmann::json::parse(row.captions, nullptr, /*allow_exceptions=*/false);
  const auto is_text = [](const auto& item) { return item.is_string() || item.is_null(); };
  if (!texts.is_array() || !std::all_of(texts.begin(), texts.end(), is_text)) {
    row.damage = fmt::format("'{}' holds a list or map, and not of texts", source_->caption_name);
    return;
  }
  for (const auto& text : texts)
    if (text.is_string() && row.caption.value_or("").empty()) row.caption = text.get<std::string>();
}

ListRow UrlLists::make_row(std::vector<Cell> cells) const {
  constexpr std::size_t longest_damage = 500;  // it may quote a line of megabytes
  ListRow row;
  if (const auto* const list = std::get_if<ListReader>(&source_->reader); list && !list->damage().empty()) {
    row.damage = valid_utf8(std::string_view(list->damage()).substr(0, longest_damage));
    row.others.resize(cells.size() - source_->first_other);
    return row;
  }
  row.url = std::visit(ToText(), cells[0]);
  if (source_->hash) row.hash = std::visit(ToText(), cells[*source_->hash]);
  if (source_->caption) set_caption(row, cells[*source_->caption]);
  for (std::size_t i = source_->first_other; i < cells.size(); ++i) {
    const auto other = row.others.size();
    if (std::holds_alternative<std::string>(cells[i]) && is_json(source_->other_names[other])) row.nested.insert(other);
    Cell cell = source_->numbers_are_text ? number_or_text(std::move(cells[i])) : std::move(cells[i]);
    if (auto* const text = std::get_if<std::string>(&cell)) *text = valid_utf8(*text);
    row.others.push_back(std::move(cell));
  }
  return row;
}

}  // namespace millrace
