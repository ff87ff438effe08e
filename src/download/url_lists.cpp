#include "url_lists.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "archive_columns.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/stop.h"
#include "millrace/core/storage_error.h"
#include "millrace/core/text.h"
#include "millrace/core/units.h"
#include "millrace/core/visible.h"
#include "millrace/io/archive_name.h"
#include "millrace/io/net/urls.h"

namespace millrace {

namespace {

bool is_table(const std::string& name) {
  return is_kind(name, ArchiveKind::parquet);
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
std::string get_column(const std::vector<std::string>& names, const std::string& wanted, const char* key,
                       const fs::path& path) {
  auto found = std::find(names.begin(), names.end(), wanted);
  if (found == names.end())
    found = std::find_if(names.begin(), names.end(), [&](const auto& name) { return lower(name) == lower(wanted); });
  if (found != names.end()) return *found;
  throw Error(Exit::usage, fmt::format("{} has no column '{}'", path.string(), wanted),
              fmt::format("set download.columns.{}; the columns are {}", key, fmt::join(names, ", ")));
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// `named`: the columns of URLs and captions, which archives have under names of their own. A reserved name in other
// letter case is the list's own (LAION's WIDTH), but has to be written so.
std::string get_other(const std::vector<std::string>& names, const std::string& wanted,
                      const std::vector<std::string>& named, const fs::path& path) {
  std::string column = get_column(names, wanted, "others", path);
  if (!is_archive_column(column) && !is_archive_column(wanted) && !contains(named, column)) return column;
  throw Error(Exit::usage,
              fmt::format("download.columns.others: '{}' of {} has the name of a column that every archive has",
                          is_archive_column(wanted) ? wanted : column, path.string()),
              "leave it out, write it in the list's letter case, or rename it in the list");
}

// A table with two columns of one name is refused by its readers. Those without a name are what commas at the ends of a
// CSV's lines make: they are left out.
void refuse_repeated(std::vector<std::string>& others, const std::vector<std::string>& names, const fs::path& path) {
  std::map<std::string, int> in_list, kept;
  for (const std::string& name : names) ++in_list[valid_utf8(name)];
  if (in_list[""] > 1) std::erase(others, "");
  for (const std::string& other : others) {
    const std::string name = valid_utf8(other);
    if (in_list[name] > 1) {
      throw Error(Exit::usage, fmt::format("{} has several columns '{}'", path.string(), name),
                  "rename all but one in the list, or leave them out: download.columns.others names what is kept");
    }
    if (++kept[name] > 1)
      fail(Exit::usage, "download.columns.others: the column '{}' of {} is named twice", name, path.string());
  }
}

struct ToText {
  std::string operator()(std::monostate) const { return {}; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(std::uint64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return fmt::format("{}", value); }
  std::string operator()(const std::string& value) const { return valid_utf8(value); }
  std::string operator()(const JsonText& value) const { return value.text; }
};

struct Schema {
  std::vector<std::string> names, binary;
  std::vector<std::string> no_captions;  // lists and maps but for lists of texts
  std::map<std::string, ParquetType> types;
};

Schema schema_of(const fs::path& path) {
  if (!is_table(path.string())) return {ListReader(path).schema(), {}, {}, {}};
  Schema schema;
  for (const ParquetColumn& column : parquet_schema(path)) {
    schema.names.push_back(column.name);
    if (column.holds == ColumnHolds::bytes) schema.binary.push_back(column.name);
    if (column.holds == ColumnHolds::nested) schema.no_captions.push_back(column.name);
    schema.types.emplace(column.name, column.cell_type);
  }
  return schema;
}

std::string get_caption(const Schema& schema, const std::string& wanted, const fs::path& path) {
  std::string column = get_column(schema.names, wanted, "caption", path);
  if (!contains(schema.no_captions, column)) return column;
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
      "download.urls: {} of lists are no Parquet: they are read once for the types of their columns, and at each start "
      "each rank reads them from their first line on, where Parquet is passed over by row groups",
      format_bytes(bytes));
}

UrlLists::UrlLists(const DownloadConfig& config, ListTypes types)
    : config_(config), files_(expand_lists(config.urls)), types_(std::move(types)) {}

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
    if (list.skip(1) == 0) return {.reader = std::move(list)};
  }
  const bool is_plain = !is_table(path.string()) && list_format(path.string()) == ListFormat::txt;

  std::vector<std::string> columns = {is_plain ? "url" : get_column(schema.names, wanted.url, "url", path)};
  std::optional<std::size_t> caption, hash;
  if (wanted.caption && !is_plain) {
    caption = columns.size();
    columns.push_back(get_caption(schema, *wanted.caption, path));
  }
  const std::vector<std::string> named = columns;
  if (wanted.hash && !is_plain) {
    hash = columns.size();
    columns.push_back(get_column(schema.names, *wanted.hash, "hash", path));
  }

  std::vector<std::string> others;
  if (wanted.others.empty()) {
    for (const std::string& name : schema.names) {
      if (!contains(named, name) && !contains(schema.binary, name) && !is_archive_column(name)) others.push_back(name);
    }
  } else {
    for (const std::string& name : wanted.others) others.push_back(get_other(schema.names, name, named, path));
  }
  refuse_repeated(others, schema.names, path);
  const std::size_t first_other = columns.size();
  columns.insert(columns.end(), others.begin(), others.end());

  const std::string caption_name = caption ? columns[*caption] : "";
  if (!is_table(path.string()))
    return {.reader = ListReader(path, columns),
            .caption = caption,
            .hash = hash,
            .caption_name = caption_name,
            .other_names = others,
            .first_other = first_other,
            .numbers_are_text = list_format(path.string()) != ListFormat::jsonl};
  ColumnTypes types;
  for (const std::string& name : others) types.push_back(schema.types.at(name));
  return {.reader = ParquetReader(path, columns),
          .caption = caption,
          .hash = hash,
          .caption_name = caption_name,
          .other_names = others,
          .first_other = first_other,
          .types = types};
}

bool UrlLists::open_next() {
  if (file_ == files_.size()) return false;
  const std::size_t file = file_++;
  source_.emplace(open(files_[file]));
  const bool is_list = std::holds_alternative<ListReader>(source_->reader);
  if (is_list && file < types_.size() && types_[file]) source_->types = *types_[file];
  return true;
}

ListTypes UrlLists::find_types(ListTypes known) const {
  constexpr std::uint64_t worth_a_word = 100'000'000;  // bytes: seconds
  known.resize(files_.size());
  std::uint64_t left = config_.limit.value_or(std::numeric_limits<std::uint64_t>::max());
  for (std::size_t i = 0; i < files_.size() && left > 0; ++i) {
    if (!config_.limit && is_table(files_[i].string())) {  // its schema tells
      known[i].reset();
      continue;
    }
    Source source = open(files_[i]);
    if (auto* const table = std::get_if<ParquetReader>(&source.reader)) {
      left -= table->skip(left);
      known[i].reset();
      continue;
    }
    if (source.other_names.empty()) known[i].emplace();
    const bool is_known = known[i] && known[i]->size() == source.other_names.size();
    // Towards a limit the rows of each list count.
    if (is_known && !config_.limit) continue;
    if (std::error_code unknown; fs::file_size(files_[i], unknown) > worth_a_word)
      log::info("reads {} for the types of its columns", visible_line(files_[i].string()));
    left -= survey(source, left, known[i].emplace());
  }
  return known;
}

std::uint64_t UrlLists::survey(Source& source, std::uint64_t rows, ColumnTypes& types) {
  auto& list = std::get<ListReader>(source.reader);
  std::vector<CommonType> common(source.other_names.size());
  std::uint64_t row = 0;
  try {
    for (; row < rows; ++row) {
      if (stop::requested()) fail(Exit::requeue, "told to stop while lists were looked through");
      const auto cells = list.next();
      if (!cells) break;
      for (std::size_t i = 0; i < common.size(); ++i)
        common[i].add(cells->at(source.first_other + i), source.numbers_are_text);
    }
  } catch (const Error& error) {  // where it breaks it ends for read(), too
    if (!is_damage(error)) throw;
  }
  for (const CommonType& column : common) types.push_back(column.get());
  return row;
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
    if (!source_ && !open_next()) break;
    if (source_->types.size() != source_->other_names.size()) refuse_changed("it now has other columns");
    const auto next = [&] { return std::visit([](auto& reader) { return reader.next(); }, source_->reader); };
    while (slice.rows.size() < most) {
      auto cells = next();
      if (!cells) break;
      slice.rows.push_back(make_row(std::move(*cells)));
    }
    slice.has_captions = source_->caption.has_value();
    slice.other_types = source_->types;
    slice.numbers_are_text = source_->numbers_are_text;
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
    if (!source_ && !open_next()) return false;
    const std::uint64_t rows = std::visit([&](auto& reader) { return reader.skip(most); }, source_->reader);
    if (rows > 0) {
      advance(rows);
      return true;
    }
    source_.reset();
  }
  return false;
}

void UrlLists::set_caption(ListRow& row, const Cell& cell) const {
  if (std::holds_alternative<std::monostate>(cell)) return;
  const auto* const several = std::get_if<JsonText>(&cell);
  if (!several) {
    row.caption = std::visit(ToText(), cell);
    return;
  }
  row.captions = several->text;
  const auto texts = nlohmann::json::parse(row.captions, nullptr, /*allow_exceptions=*/false);
  const auto is_text = [](const auto& item) { return item.is_string() || item.is_null(); };
  if (!texts.is_array() || !std::all_of(texts.begin(), texts.end(), is_text)) {
    row.damage = fmt::format("'{}' holds a list or map, and not of texts", source_->caption_name);
    return;
  }
  for (const auto& text : texts)
    if (text.is_string() && row.caption.value_or("").empty()) row.caption = text.get<std::string>();
}

// Another rank may have found the types of its columns, at the start.
void UrlLists::refuse_changed(const std::string& how) const {
  throw Error(Exit::io,
              fmt::format("{} has changed since its columns were looked at: {}", files_[file_ - 1].string(), how),
              "lists must stay as they are while they are downloaded; put it back, or choose another download.out");
}

// One of the further columns'.
Cell UrlLists::make_other(std::size_t other, Cell cell) const {
  const ParquetType type = source_->types[other];
  cell = meaning_of(std::move(cell), type, source_->numbers_are_text);
  if (!fits_column(cell, type) && std::holds_alternative<ListReader>(source_->reader))
    refuse_changed(fmt::format("'{}' now has values of other types", source_->other_names[other]));
  if (auto* const text = std::get_if<std::string>(&cell)) *text = valid_utf8(*text);
  return cell;
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
  for (std::size_t i = source_->first_other; i < cells.size(); ++i)
    row.others.push_back(make_other(i - source_->first_other, std::move(cells[i])));
  return row;
}

}  // namespace millrace
