#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/files.h"
#include "millrace/io/cell.h"

// Rows of text files: CSV and TSV with a header (quotes as in RFC 4180), JSON lines (as Python's json reads them),
// plain lines; each also gzipped.
namespace millrace {

// What a file's name says: .csv, .tsv, .jsonl or .ndjson, .txt, each also with .gz behind it, in letters of either
// case; nothing for others.
enum class ListFormat { csv, tsv, jsonl, txt };
std::optional<ListFormat> list_format(std::string_view path);

// Reads a list front to back with the memory of one row. Empty lines are no rows; a byte order mark is left out. Errors
// are Error(io) naming the file and the line.
//   CSV, TSV  cells are text; "" for an empty field.
//   JSONL     a key that a row lacks: null.
//   TXT       one text column `url`.
// A damaged row (too few or too many fields, a line that is no JSON object) brings nulls alone and is counted.
// A quote that opens a field of CSV or TSV has to be closed: at the end of a field where that lies in another line,
// else it is a character like any other, as in files that were written without quoting.
class ListReader {
 public:
  // `columns` = the columns that rows bring, in that order; empty = all of schema(). Error(io) when CSV, TSV or TXT
  // have no such column, or when the name is no list's and no `format` is given.
  explicit ListReader(const fs::path& path, std::vector<std::string> columns = {},
                      std::optional<ListFormat> format = std::nullopt);
  ~ListReader();
  ListReader(ListReader&&) noexcept;
  ListReader& operator=(ListReader&&) noexcept;

  // Every column: the header's names; of JSONL the keys of the first 1000 rows, for which the file is read once more.
  const std::vector<std::string>& schema() const;
  // The next row's cells, one per chosen column; nothing at the end.
  std::optional<std::vector<Cell>> next();
  // Passes over up to `rows` rows and returns how many there were.
  std::uint64_t skip(std::uint64_t rows);
  // Why the row that next() gave last is damaged; empty when it is not.
  const std::string& damage() const;
  // Number of the row that next() gives; after an Error, of the first one that cannot be read.
  std::uint64_t row() const;
  // Damaged rows among those read or skipped so far.
  std::uint64_t damaged_rows() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// A text that is a number in JSON's grammar as that number (filters compare numbers); any other cell as it is, also a
// text of several digits and an exponent without a point, which no program writes for a number, and integers beyond 64
// bits.
Cell number_or_text(Cell cell);

}  // namespace millrace
