#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/io/cell.h"
#include "millrace/io/parquet.h"

namespace millrace {

struct TableColumn {
  std::string name;
  ColumnHolds holds = ColumnHolds::other;
  bool is_struct = false;  // the bytes are a member of it
};

// Rows under column names, read from front to back. Errors are Error(io) naming the file.
class Table {
 public:
  virtual ~Table() = default;
  // The next row's cells, one per chosen column; nothing at the end.
  virtual std::optional<std::vector<Cell>> next() = 0;
  // Why the row that next() gave last has nulls alone: it is damaged. Empty when it is not.
  virtual std::string damage() const { return {}; }
  // Passes over up to `rows` rows and returns how many there were.
  virtual std::uint64_t skip(std::uint64_t rows) = 0;
  // Number of the row that next() gives; after an Error, of the first one that cannot be read.
  virtual std::uint64_t row() const = 0;
  // Cells are text, whatever they mean (CSV, TSV).
  virtual bool is_untyped() const = 0;
};

// By its suffix: .parquet, .csv, .tsv, .jsonl, and the lists with .gz behind it.
bool is_table(std::string_view path);

// None of a list without a row, or without one that can be read among its first.
std::vector<TableColumn> table_columns(const std::string& path);
std::unique_ptr<Table> open_table(const std::string& path, const std::vector<std::string>& columns,
                                  ParquetLists lists = ParquetLists::json);
// Rows of the file, at most `most`: Parquet tells, a list is read so far.
std::uint64_t count_table_rows(const std::string& path, std::uint64_t most);

}  // namespace millrace
