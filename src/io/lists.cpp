#include "millrace/io/lists.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "millrace/core/error.h"
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
    bytes_ = 0;
    line_ = text_.line();
    int byte = get();
    while (byte == '\n' || byte == '\r') byte = get();
    if (byte == TextFile::end) return false;
    while (true) {
      byte = read_field(byte, fields.emplace_back());
      if (byte != delimiter_) return true;
      byte = get();
    }
  }

 private:
  int get() {
    if (++bytes_ > max_row_bytes)
      throw Error(Exit::io, fmt::format("{}: a row of more than 64 MiB", text_.place(line_)), "is a quote not closed?");
    return text_.get();
  }

  // Takes the field that starts with `byte` and returns what ended it: the delimiter, a line end or the file's end.
  int read_field(int byte, std::string& field) {
    if (byte == '"') byte = read_quoted(field);
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

  // Takes the field behind an opening quote and returns the byte behind the closing one.
  int read_quoted(std::string& field) {
    while (true) {
      int byte = get();
      if (byte == '"' && (byte = get()) != '"') return byte;
      if (byte == TextFile::end) fail(Exit::io, "{}: a quote that is never closed", text_.place(line_));
      field += static_cast<char>(byte);
    }
  }

  TextFile& text_;
  const int delimiter_;
  std::size_t bytes_ = 0;   // of the record at hand
  std::uint64_t line_ = 1;  // that it starts in
};

Cell cell_of(const nlohmann::json& value) {
  switch (value.type()) {
    case nlohmann::json::value_t::null:
      return std::monostate();
    case nlohmann::json::value_t::boolean:
      return value.get<bool>();
    case nlohmann::json::value_t::number_unsigned:
      if (value.get<std::uint64_t>() > INT64_MAX) return value.get<double>();
      [[fallthrough]];
    case nlohmann::json::value_t::number_integer:
      return value.get<std::int64_t>();
    case nlohmann::json::value_t::number_float:
      return value.get<double>();
    case nlohmann::json::value_t::string:
      return value.get<std::string>();
    default:
      return value.dump();
  }
}

// One row before columns are chosen.
struct Row {
  bool damaged = false;
  std::vector<std::string> fields;  // of CSV, TSV and TXT
  nlohmann::json object;            // of JSONL
};

}  // namespace

std::optional<ListFormat> list_format(std::string_view path) {
  if (path.ends_with(".gz")) path.remove_suffix(3);
  if (path.ends_with(".csv")) return ListFormat::csv;
  if (path.ends_with(".tsv")) return ListFormat::tsv;
  if (path.ends_with(".jsonl") || path.ends_with(".ndjson")) return ListFormat::jsonl;
  if (path.ends_with(".txt")) return ListFormat::txt;
  return std::nullopt;
}

class ListReader::Impl {
 public:
  Impl(const fs::path& path, std::vector<std::string> columns)
      : format_(format_of(path)), text_(path), records_(text_, format_ == ListFormat::tsv ? '\t' : ',') {
    read_schema();
    chosen_ = columns.empty() ? schema_ : std::move(columns);
    if (format_ == ListFormat::jsonl) return;
    for (const std::string& name : chosen_) positions_.push_back(position_of(name, path));
  }

  const std::vector<std::string>& schema() const { return schema_; }
  std::uint64_t damaged_rows() const { return damaged_rows_; }

  std::optional<std::vector<Cell>> next() {
    if (!read_row()) return std::nullopt;
    std::vector<Cell> cells(chosen_.size());
    for (std::size_t i = 0; i < cells.size() && !row_.damaged; ++i) {
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

  void read_schema() {
    if (format_ == ListFormat::txt) {
      schema_ = {"url"};
    } else if (format_ == ListFormat::jsonl) {
      has_peeked_ = read_row();
      if (has_peeked_ && !row_.damaged) {
        for (const auto& [name, value] : row_.object.items()) schema_.push_back(name);
      }
    } else {
      records_.next(schema_);
    }
  }

  std::size_t position_of(const std::string& name, const fs::path& path) const {
    const auto found = std::find(schema_.begin(), schema_.end(), name);
    if (found != schema_.end()) return static_cast<std::size_t>(found - schema_.begin());
    throw Error(Exit::io, fmt::format("{} has no column '{}'", path.string(), name),
                fmt::format("its columns are {}", fmt::join(schema_, ", ")));
  }

  // Makes row_ the next row; false at the end of the file.
  bool read_row() {
    if (std::exchange(has_peeked_, false)) return true;
    const bool found = format_ == ListFormat::jsonl ? read_object()
                       : format_ == ListFormat::txt ? read_url()
                                                    : read_record();
    damaged_rows_ += found && row_.damaged;
    return found;
  }

  bool read_record() {
    const bool found = records_.next(row_.fields);
    row_.damaged = row_.fields.size() != schema_.size();
    return found;
  }

  bool read_url() {
    row_.fields.resize(1);
    return read_line(row_.fields[0]);
  }

  bool read_line(std::string& line) {
    while (text_.get_line(line)) {
      if (line.find_first_not_of(" \t") != std::string::npos) return true;
    }
    return false;
  }

  bool read_object() {
    if (!read_line(line_)) return false;
    try {
      row_.object = parse_json(line_, text_.place(text_.line()));
      row_.damaged = !row_.object.is_object();
    } catch (const Error&) {
      row_.damaged = true;
    }
    return true;
  }

  const ListFormat format_;
  TextFile text_;
  RecordParser records_;
  std::vector<std::string> schema_, chosen_;
  std::vector<std::size_t> positions_;  // chosen column -> field
  Row row_;
  std::string line_;
  bool has_peeked_ = false;  // row_ is the first row, read for its keys
  std::uint64_t damaged_rows_ = 0;
};

ListReader::ListReader(const fs::path& path, std::vector<std::string> columns)
    : impl_(std::make_unique<Impl>(path, std::move(columns))) {}
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

std::uint64_t ListReader::damaged_rows() const {
  return impl_->damaged_rows();
}

Cell number_or_text(Cell cell) {
  const std::string* const text = std::get_if<std::string>(&cell);
  if (!text) return cell;
  // nlohmann's lexer is the grammar ("007", "+1", "0x10", "1." and "nan" stay text), but it would pass over spaces.
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text->empty() || !(is_digit(text->front()) || text->front() == '-') || !is_digit(text->back())) return cell;
  const nlohmann::json number = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!number.is_number()) return cell;
  Cell value = cell_of(number);
  const bool too_many_digits = std::holds_alternative<double>(value) && text->find_first_of(".eE") == text->npos;
  return too_many_digits ? cell : value;
}

}  // namespace millrace
