#include "table_source.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "key_counter.h"
#include "millrace/core/error.h"
#include "millrace/core/json_text.h"
#include "millrace/core/log.h"
#include "millrace/core/storage_error.h"
#include "millrace/core/text.h"
#include "millrace/dataset/image_uri.h"
#include "millrace/dataset/row.h"
#include "millrace/dataset/table_split_reader.h"
#include "millrace/io/lists.h"
#include "millrace/io/tar.h"

namespace millrace {

namespace {

using nlohmann::json;

// What a name, a caption or a class is as text; nothing for null.
std::optional<std::string> text_of(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* several = std::get_if<JsonText>(&cell)) return several->text;
  if (const auto* number = std::get_if<std::int64_t>(&cell)) return fmt::to_string(*number);
  if (const auto* number = std::get_if<std::uint64_t>(&cell)) return fmt::to_string(*number);
  if (const auto* truth = std::get_if<bool>(&cell)) return fmt::to_string(*truth);
  const auto* real = std::get_if<double>(&cell);
  return real && !std::isnan(*real) ? std::optional(text_of_number(*real)) : std::nullopt;
}

// A row without a key has its number, which may be another row's key.
std::string key_of(const Cell& cell, std::uint64_t row) {
  const auto key = text_of(cell);
  return key && !key->empty() ? without_nul(valid_utf8(*key)) : fmt::to_string(row);
}

// What a text of an untyped table means to a filter.
Cell meaning_of(Cell cell) {
  const std::string& text = std::get<std::string>(cell);
  if (text.empty()) return std::monostate();
  if (text == "true" || text == "True") return true;
  if (text == "false" || text == "False") return false;
  return number_or_text(std::move(cell));
}

// For filters, which compare none of several values.
json json_of(const Cell& cell) {
  if (const auto* truth = std::get_if<bool>(&cell)) return *truth;
  if (const auto* number = std::get_if<std::int64_t>(&cell)) return *number;
  if (const auto* number = std::get_if<std::uint64_t>(&cell)) return *number;
  if (const auto* text = std::get_if<std::string>(&cell)) return valid_utf8(*text);
  const auto* real = std::get_if<double>(&cell);
  if (!real || std::isnan(*real)) return nullptr;
  constexpr double largest = std::numeric_limits<double>::max();  // JSON knows no infinity
  return std::clamp(*real, -largest, largest);
}

// One split of a file from one of its rows on.
class TableReader final : public SplitReader {
 public:
  TableReader(const Archive& archive, const SampleColumns& columns, const ClassPrompts* prompts,
              const std::map<std::uint64_t, int>& repeated, const Split& split, std::uint64_t first_row)
      : archive_(archive),
        columns_(columns),
        prompts_(prompts),
        repeated_(repeated),
        split_(archive, open_table(archive.path, columns.names), split, first_row) {}

  std::optional<RawRow> next() override {
    auto row = split_.next();
    if (!row) return std::nullopt;
    if (auto* rejected = std::get_if<Rejected>(&*row)) return std::move(*rejected);
    auto& [number, cells, damage] = std::get<TableSplitReader::Row>(*row);
    if (!damage.empty()) {
      const auto reason = split_.is_untyped() ? RejectReason::missing_image : RejectReason::bad_json;
      return Rejected{name_row(archive_, fmt::to_string(number)), reason, std::move(damage)};
    }
    return to_row(std::move(cells), number);
  }

 private:
  RawRow to_row(std::vector<Cell> cells, std::uint64_t row) const {
    RawSample sample;
    sample.ref = name(cells, row);
    auto* const image = std::get_if<std::string>(&cells[SampleColumns::image]);
    if (!image || image->empty())
      return Rejected{.ref = std::move(sample.ref),
                      .reason = RejectReason::missing_image,
                      .detail = describe_missing_image(),
                      .json = metadata(cells)};
    if (image->size() > max_sample_bytes)
      return Rejected{std::move(sample.ref), RejectReason::too_large,
                      fmt::format("an image of {} bytes", image->size())};
    const auto captions = captions_in(cells);
    if (captions.empty())
      return Rejected{.ref = std::move(sample.ref),
                      .reason = RejectReason::missing_caption,
                      .detail = fmt::format("column {} {}", columns_.names[SampleColumns::caption],
                                            prompts_ ? "is no known class" : "holds no text"),
                      .json = metadata(cells)};
    if (auto refusal = set_captions(sample, captions)) return *std::move(refusal);
    if (columns_.image_is_place) {
      sample.image_uri = resolve_uri(*image, archive_.path);
    } else {
      sample.image = std::move(*image);
    }
    sample.json = metadata(cells);
    return sample;
  }

  std::string describe_missing_image() const {
    const std::string& column = columns_.names[SampleColumns::image];
    if (!columns_.image_is_struct) return fmt::format("column {} is empty", column);
    return fmt::format(
        "column {} has no bytes (where Hugging Face has written paths alone: embed the files, as "
        "push_to_hub does, or use a list of paths)",
        column);
  }

  // Of all columns of captions; a list of texts is as many. Of a class what the prompts say of it.
  std::vector<std::string> captions_in(const std::vector<Cell>& cells) const {
    if (columns_.captions == 0) return {""};
    std::vector<std::string> captions;
    for (std::size_t i = SampleColumns::caption; i < columns_.key(); ++i) {
      const auto text = text_of(cells[i]);
      if (!text) continue;
      if (prompts_) {
        if (auto prompt = prompt_of(*text)) captions.push_back(std::move(*prompt));
      } else if (!std::holds_alternative<JsonText>(cells[i])) {
        captions.push_back(*text);
      } else if (const auto list = json::parse(*text, nullptr, /*allow_exceptions=*/false); list.is_array()) {
        for (const auto& item : list) add_text(item, captions);
      }
    }
    return captions;
  }

  // pandas writes classes with gaps as 7.0 into CSV, too.
  std::optional<std::string> prompt_of(const std::string& cls) const {
    if (auto prompt = prompts_->find(cls)) return prompt;
    const auto number = split_.is_untyped() ? text_of(number_or_text(Cell(cls))) : std::nullopt;
    return number ? prompts_->find(*number) : std::nullopt;
  }

  SampleRef name(const std::vector<Cell>& cells, std::uint64_t row) const {
    if (!columns_.has_key) return name_row(archive_, fmt::to_string(row));
    const auto repeated = repeated_.find(row);
    return name_row(archive_, key_of(cells[columns_.key()], row), repeated == repeated_.end() ? 1 : repeated->second);
  }

  // A JSON object of the columns that filters ask for, as a tar's json member would hold it.
  std::string metadata(const std::vector<Cell>& cells) const {
    if (columns_.metadata() == cells.size() && columns_.not_there.empty()) return {};
    json object = json::object();
    for (std::size_t i = columns_.metadata(); i < cells.size(); ++i) object[columns_.names[i]] = value_of(cells[i]);
    return dump_any(object);
  }

  json value_of(const Cell& cell) const {
    const bool is_text = std::holds_alternative<std::string>(cell);
    return json_of(split_.is_untyped() && is_text ? meaning_of(cell) : cell);
  }

  const Archive& archive_;
  const SampleColumns columns_;
  const ClassPrompts* const prompts_;
  const std::map<std::uint64_t, int>& repeated_;
  TableSplitReader split_;
};

// Stands for a table that lacks a column: each of its rows lacks it.
class UnfitReader final : public SplitReader {
 public:
  UnfitReader(const Archive& archive, const Split& split, std::uint64_t first_row, std::uint64_t rows,
              RejectReason reason, std::string why)
      : archive_(archive), split_(split), rows_(rows), next_(first_row), reason_(reason), why_(std::move(why)) {}

  std::optional<RawRow> next() override {
    const std::uint64_t row = split_.row(next_++);
    if (row < rows_) return Rejected{name_row(archive_, fmt::to_string(row)), reason_, why_};
    return std::nullopt;
  }

 private:
  const Archive& archive_;
  const Split split_;
  const std::uint64_t rows_;
  std::uint64_t next_;  // row of the split
  const RejectReason reason_;
  const std::string why_;
};

// Up to where the file breaks, if it does: whoever reads its rows meets the break at the same place.
std::map<std::uint64_t, int> find_repeated(const std::string& path, const std::string& key_column) {
  const auto table = open_table(path, {key_column});
  KeyCounter keys;
  std::map<std::uint64_t, int> repeated;
  try {
    for (std::uint64_t row = 0; const auto cells = table->next(); ++row) {
      if (const int occurrence = keys.add(key_of(cells->front(), row)); occurrence > 1) repeated[row] = occurrence;
    }
  } catch (const Error& error) {
    if (!is_damage(error)) throw;
  }
  return repeated;
}

}  // namespace

std::unique_ptr<SplitReader> TableSource::open(const Split& split, std::uint64_t first_row) const {
  try {
    return open_rows(split, first_row);
  } catch (const Error& error) {
    if (!is_damage(error)) throw;
    return make_broken_reader(manifest_.archives[split.archive], split, first_row, error.what());
  }
}

std::unique_ptr<SplitReader> TableSource::open_rows(const Split& split, std::uint64_t first_row) const {
  const Archive& archive = manifest_.archives.at(split.archive);
  const std::vector<TableColumn> table = table_columns(archive.path);
  if (table.empty()) {
    if (count_table_rows(archive.path, 1) > 0) fail(Exit::io, "{}: none of its first rows can be read", archive.path);
    const bool lacks_row = lacks_row_before(split, first_row, 0);
    return make_one_row_reader(lacks_row ? std::optional(lost_rows(archive, 0)) : std::nullopt);
  }
  try {
    const SampleColumns columns = choose_columns(table, config_, archive.path);
    warn_of_missing_fields(columns.not_there, table, archive.path);
    return std::make_unique<TableReader>(archive, columns, prompts_ ? &*prompts_ : nullptr, repeated_in(split.archive),
                                         split, first_row);
  } catch (const ColumnError& error) {
    const auto why = fmt::format("{}; {}", error.what(), error.hint());
    const auto reason = error.key == "image" ? RejectReason::missing_image : RejectReason::missing_caption;
    warn_of_unfit(split.archive, why);
    const auto rows = count_table_rows(archive.path, archive.limit.value_or(std::numeric_limits<std::uint64_t>::max()));
    if (lacks_row_before(split, first_row, rows)) return make_one_row_reader(lost_rows(archive, rows, why));
    return std::make_unique<UnfitReader>(archive, split, first_row, rows, reason, why);
  }
}

void TableSource::warn_of_unfit(std::uint32_t archive, const std::string& why) const {
  const std::lock_guard lock(mutex_);
  if (unfit_.insert(archive).second) log::warning("{}: all its rows are left out", why);
}

const TableSource::Repeated& TableSource::repeated_in(std::uint32_t archive) const {
  std::unique_lock lock(mutex_);
  Survey& survey = surveys_[archive];
  lock.unlock();
  const std::lock_guard making(survey.mutex);  // one that fails is made anew by the next who needs it
  if (!survey.repeated)
    survey.repeated =
        config_.columns.key ? find_repeated(manifest_.archives[archive].path, *config_.columns.key) : Repeated();
  return *survey.repeated;
}

void TableSource::warn_of_missing_fields(const std::vector<std::string>& fields, const std::vector<TableColumn>& table,
                                         const std::string& path) const {
  if (fields.empty() || warned_.exchange(true)) return;
  std::vector<std::string> there;
  for (const TableColumn& column : table) there.push_back(column.name);
  log::warning("{}.filters ask for {}, which {} does not have, so all its rows are dropped; its columns are {}",
               config_.section, fmt::join(fields, ", "), path, fmt::join(there, ", "));
}

}  // namespace millrace
