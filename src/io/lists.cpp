#include "millrace/io/lists.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "millrace/core/error.h"
#include "millrace/core/storage_error.h"
#include "millrace/core/text.h"
#include "millrace/io/json.h"
#include "text_file.h"

namespace millrace {

namespace {

// Reads delimited records; a field in quotes may hold delimiters, line ends and doubled quotes (RFC 4180).
class RecordParser {
 public:
  RecordParser(TextFile& text, char delimiter) : text_(text), delimiter_(delimiter) {}

  // The next record that is not an empty line; false at the end of the file.
  bool next(std::vector<std::string>& fields) {
    fields.clear();
    int byte = first_byte();
    while (byte == '\n' || byte == '\r') byte = first_byte();
    if (byte == TextFile::end) return false;
    while (true) {
      byte = read_field(byte, fields.emplace_back());
      if (byte != delimiter_) return true;
      byte = get();
    }
  }

  // FILE:LINE where the record begins.
  std::string place() const { return text_.place(line_); }
  // Whether a line has ended so far.
  bool has_newlines() const { return next_line_ > 1; }

 private:
  int first_byte() {
    bytes_ = 0;
    line_ = next_line_;
    return get();
  }

  int get() {
    if (++bytes_ > max_row_bytes) fail(Exit::io, "{}: a row of more than 64 MiB", place());
    const int byte = next_held_ < held_.size() ? static_cast<unsigned char>(held_[next_held_++]) : get_from_text();
    next_line_ += byte == '\n';
    return byte;
  }

  int get_from_text() {
    const int byte = text_.get();
    if (holds_ && byte != TextFile::end) {
      held_ += static_cast<char>(byte);
      ++next_held_;
    }
    return byte;
  }

  // Takes the field that starts with `byte` and returns what ended it: the delimiter, a line end or the file's end.
  int read_field(int byte, std::string& field) {
    if (byte == '"') byte = read_quoted_or_go_back(field);
    while (byte != delimiter_ && byte != '\n' && byte != TextFile::end) {
      if (byte == '\r') {
        byte = get();
        if (byte == '\n' || byte == TextFile::end) break;
        field += '\r';
      } else {
        field += static_cast<char>(byte);
        byte = get();
      }
    }
    return byte;
  }

  // NOTE [Quotes that are none]: files written without quoting (pandas' QUOTE_NONE, most TSVs of captions) hold fields
  // that begin with a quote. Taken for an opening one it would swallow rows up to the next quote of the file, or all of
  // them. So a field over several lines has to end right behind its closing quote; else its first quote is text.
  int read_quoted_or_go_back(std::string& field) {
    if (next_held_ > held_.size() / 2) {  // not each time: that would move the rest again and again
      held_.erase(0, next_held_);
      next_held_ = 0;
    }
    const auto bytes = bytes_, line = next_line_;
    const std::size_t start = next_held_;
    holds_ = true;
    const auto after = read_quoted(field);
    holds_ = false;
    if (after) return *after;
    bytes_ = bytes;
    next_line_ = line;
    next_held_ = start;
    field = '"';
    return get();
  }

  // Takes the field behind an opening quote and returns the byte behind the closing one; nothing when there is none.
  std::optional<int> read_quoted(std::string& field) {
    const auto first_line = next_line_;
    while (bytes_ + 1 < max_row_bytes) {
      int byte = get();
      if (byte == '"' && (byte = get()) != '"') {
        const bool ends = byte == delimiter_ || byte == '\n' || byte == '\r' || byte == TextFile::end;
        return ends || next_line_ == first_line ? std::optional(byte) : std::nullopt;
      }
      if (byte == TextFile::end) break;
      field += static_cast<char>(byte);
    }
    return std::nullopt;
  }

  TextFile& text_;
  const int delimiter_;
  std::uint64_t bytes_ = 0;                 // of the record at hand
  std::uint64_t line_ = 1, next_line_ = 1;  // that the record starts in, that the next byte is in
  std::string held_;                        // bytes that may be read again, or will be
  std::size_t next_held_ = 0;
  bool holds_ = false;  // what comes from the file is kept in held_
};

Cell cell_of(const nlohmann::json& value) {
  switch (value.type()) {
    case nlohmann::json::value_t::null:
      return std::monostate();
    case nlohmann::json::value_t::boolean:
      return value.get<bool>();
    case nlohmann::json::value_t::number_unsigned:
      return whole_number(value.get<std::uint64_t>());
    case nlohmann::json::value_t::number_integer:
      return value.get<std::int64_t>();
    case nlohmann::json::value_t::number_float:
      return value.get<double>();
    case nlohmann::json::value_t::string:
      return value.get<std::string>();
    default:
      return JsonText{value.dump()};
  }
}

// One row before columns are chosen.
struct Row {
  std::string damage;               // why it cannot be used; empty = it can
  std::vector<std::string> fields;  // of CSV, TSV and TXT
  nlohmann::json object;            // of JSONL
};

}  // namespace

std::optional<ListFormat> list_format(std::string_view path) {
  const std::string lower_case = lower(path);
  std::string_view name = lower_case;
  if (name.ends_with(".gz")) name.remove_suffix(3);
  if (name.ends_with(".csv")) return ListFormat::csv;
  if (name.ends_with(".tsv")) return ListFormat::tsv;
  if (name.ends_with(".jsonl") || name.ends_with(".ndjson")) return ListFormat::jsonl;
  if (name.ends_with(".txt")) return ListFormat::txt;
  return std::nullopt;
}

class ListReader::Impl {
 public:
  Impl(const fs::path& path, std::vector<std::string> columns, std::optional<ListFormat> format)
      : path_(path),
        format_(format ? *format : format_of(path)),
        text_(path),
        records_(text_, format_ == ListFormat::tsv ? '\t' : ',') {
    if (format_ == ListFormat::txt) schema_ = {"url"};
    if (format_ == ListFormat::csv || format_ == ListFormat::tsv) records_.next(schema_);
    const auto holds_return = [](const std::string& name) { return name.find('\r') != name.npos; };
    if (!records_.has_newlines() && std::ranges::any_of(schema_, holds_return))
      throw Error(Exit::io, fmt::format("{}: its lines end in carriage returns alone", path.string()),
                  "convert it: `mac2unix` does");
    chosen_ = std::move(columns);
    if (chosen_.empty()) chosen_ = schema();
    if (format_ == ListFormat::jsonl) return;
    for (const std::string& name : chosen_) positions_.push_back(position_of(name, path));
  }

  const std::vector<std::string>& schema() {
    if (format_ == ListFormat::jsonl && schema_.empty()) schema_ = first_keys();
    return schema_;
  }
  const std::string& damage() const { return row_.damage; }
  std::uint64_t row() const { return rows_; }
  std::uint64_t damaged_rows() const { return damaged_rows_; }

  std::optional<std::vector<Cell>> next() {
    if (!read_row()) return std::nullopt;
    std::vector<Cell> cells(chosen_.size());
    for (std::size_t i = 0; i < cells.size() && row_.damage.empty(); ++i) {
      if (format_ != ListFormat::jsonl) {
        cells[i] = row_.fields[positions_[i]];
      } else if (const auto found = row_.object.find(chosen_[i]); found != row_.object.end()) {
        cells[i] = cell_of(*found);
      }
    }
    return cells;
  }

  std::uint64_t skip(std::uint64_t rows) {
    std::uint64_t skipped = 0;
    while (skipped < rows && read_row()) ++skipped;
    return skipped;
  }

 private:
  static ListFormat format_of(const fs::path& path) {
    if (const auto format = list_format(path.string())) return *format;
    throw Error(Exit::io, fmt::format("{} is no list by its name", path.string()),
                "lists are .csv, .tsv, .jsonl, .txt, or these with .gz");
  }

  // A key that a row lacks may be in the next one. Of a file that breaks among them, those before the break.
  std::vector<std::string> first_keys() const {
    constexpr int rows = 1000;
    Impl other(path_, {"any"}, format_);
    std::set<std::string> keys;
    try {
      for (int row = 0; row < rows && other.read_row(); ++row) {
        if (!other.row_.damage.empty()) continue;
        for (const auto& [name, value] : other.row_.object.items()) keys.insert(name);
      }
    } catch (const Error& error) {
      if (!is_damage(error) || keys.empty()) throw;
    }
    return {keys.begin(), keys.end()};
  }

  std::size_t position_of(const std::string& name, const fs::path& path) const {
    const auto found = std::find(schema_.begin(), schema_.end(), name);
    if (found != schema_.end()) return static_cast<std::size_t>(found - schema_.begin());
    throw Error(Exit::io, fmt::format("{} has no column '{}'", path.string(), name),
                fmt::format("its columns are {}", fmt::join(schema_, ", ")));
  }

  // Makes row_ the next row; false at the end of the file.
  bool read_row() {
    row_.damage.clear();
    const bool found = format_ == ListFormat::jsonl ? read_object()
                       : format_ == ListFormat::txt ? read_url()
                                                    : read_record();
    rows_ += found;
    damaged_rows_ += found && !row_.damage.empty();
    return found;
  }

  bool read_record() {
    if (!records_.next(row_.fields)) return false;
    const std::size_t fields = row_.fields.size();
    if (fields != schema_.size())
      row_.damage = fmt::format("{}: {} fields instead of {}", records_.place(), fields, schema_.size());
    return true;
  }

  bool read_url() {
    row_.fields.resize(1);
    return read_line(row_.fields[0]);
  }

  bool read_line(std::string& line) {
    for (line_number_ = text_.line(); text_.get_line(line); line_number_ = text_.line()) {
      if (line.find_first_not_of(" \t") != std::string::npos) return true;
    }
    return false;
  }

  bool read_object() {
    if (!read_line(line_)) return false;
    const std::string place = text_.place(line_number_);
    try {
      row_.object = parse_python_json(line_, place);
      if (!row_.object.is_object()) row_.damage = place + " does not hold a JSON object";
    } catch (const Error& error) {
      row_.damage = error.what();
    }
    return true;
  }

  const fs::path path_;
  const ListFormat format_;
  TextFile text_;
  RecordParser records_;
  std::vector<std::string> schema_, chosen_;
  std::vector<std::size_t> positions_;  // chosen column -> field
  Row row_;
  std::string line_;
  std::uint64_t line_number_ = 1;
  std::uint64_t rows_ = 0, damaged_rows_ = 0;
};

ListReader::ListReader(const fs::path& path, std::vector<std::string> columns, std::optional<ListFormat> format)
    : impl_(std::make_unique<Impl>(path, std::move(columns), format)) {}
ListReader::~ListReader() = default;
ListReader::ListReader(ListReader&&) noexcept = default;
ListReader& ListReader::operator=(ListReader&&) noexcept = default;

const std::vector<std::string>& ListReader::schema() const {
  return impl_->schema();
}

std::optional<std::vector<Cell>> ListReader::next() {
  return impl_->next();
}

std::uint64_t ListReader::skip(std::uint64_t rows) {
  return impl_->skip(rows);
}

const std::string& ListReader::damage() const {
  return impl_->damage();
}

std::uint64_t ListReader::row() const {
  return impl_->row();
}

std::uint64_t ListReader::damaged_rows() const {
  return impl_->damaged_rows();
}

Cell number_or_text(Cell cell) {
  const std::string* const text = std::get_if<std::string>(&cell);
  if (!text) return cell;
  // nlohmann's lexer is the grammar ("007", "+1", "0x10", "1." and "nan" stay text), but it would pass over spaces.
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text->empty() || !(is_digit(text->front()) || text->front() == '-') || !is_digit(text->back())) return cell;
  const auto exponent = text->find_first_of("eE");
  const std::size_t digits = exponent - (text->front() == '-' ? 1 : 0);
  if (exponent != text->npos && digits > 1 && text->find('.') > exponent) return cell;  // 12345e67 is hexadecimal
  const nlohmann::json number = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!number.is_number()) return cell;
  Cell value = cell_of(number);
  const bool too_many_digits = std::holds_alternative<double>(value) && text->find_first_of(".eE") == text->npos;
  return too_many_digits ? cell : value;
}

}  // namespace millrace
