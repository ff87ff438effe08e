#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "millrace/io/cell.h"
#include "millrace/io/parquet.h"

// The types of a list's further columns. All archives of a list have the same, whatever their own rows hold, so that
// their tables fit together.
namespace millrace {

using ColumnTypes = std::vector<ParquetType>;
// Of lists in turn; none for Parquet, whose schema tells, and for a list behind download.limit.
using ListTypes = std::vector<std::optional<ColumnTypes>>;

// The type that holds all cells of one column: text when they differ.
class CommonType {
 public:
  // `numbers_are_text`: as in CSV.
  void add(const Cell& cell, bool numbers_are_text);
  ParquetType get() const { return common_.value_or(ParquetType::text); }

 private:
  std::optional<ParquetType> common_;
};

// What a cell of a column of such a type means: as in CSV a text is a number in a column of numbers, or stands for
// none.
Cell meaning_of(Cell cell, ParquetType type, bool numbers_are_text);
// Whether it may stand in such a column; in one of texts anything may.
bool fits_column(const Cell& cell, ParquetType type);

nlohmann::json types_to_json(const ListTypes& lists);
// Error(io) names `where` for anything else.
ListTypes types_from_json(const nlohmann::json& json, const std::string& where);

}  // namespace millrace
