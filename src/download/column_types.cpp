#include "column_types.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "millrace/core/error.h"
#include "millrace/io/lists.h"

namespace millrace {

namespace {

constexpr std::array<std::pair<std::string_view, ParquetType>, 4> type_words = {{{"boolean", ParquetType::boolean},
                                                                                 {"int64", ParquetType::int64},
                                                                                 {"float64", ParquetType::float64},
                                                                                 {"text", ParquetType::text}}};

// Texts that pyarrow, and so img2dataset, reads in a column of numbers as null.
bool stands_for_null(const Cell& cell) {
  static constexpr std::array<std::string_view, 17> words = {
      "",        "#N/A", "#N/A N/A", "#NA",  "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND",
      "1.#QNAN", "N/A",  "NA",       "NULL", "NaN",     "n/a",      "nan",  "null",
  };
  const auto* const text = std::get_if<std::string>(&cell);
  return text && std::find(words.begin(), words.end(), *text) != words.end();
}

// Text for whole numbers beyond int64, too.
ParquetType type_of_cell(const Cell& cell) {
  if (std::holds_alternative<bool>(cell)) return ParquetType::boolean;
  if (std::holds_alternative<std::int64_t>(cell)) return ParquetType::int64;
  return std::holds_alternative<double>(cell) ? ParquetType::float64 : ParquetType::text;
}

bool is_number(ParquetType type) {
  return type == ParquetType::int64 || type == ParquetType::float64;
}

ParquetType type_of_word(const std::string& word, const std::string& where) {
  for (const auto& [known, type] : type_words)
    if (known == word) return type;
  fail(Exit::io, "{}: '{}' is no type of a column", where, word);
}

}  // namespace

void CommonType::add(const Cell& cell, bool numbers_are_text) {
  if (common_ == ParquetType::text || std::holds_alternative<std::monostate>(cell)) return;
  if (numbers_are_text && stands_for_null(cell)) return;
  const ParquetType type = type_of_cell(numbers_are_text ? number_or_text(cell) : cell);
  const bool are_numbers = is_number(type) && is_number(common_.value_or(type));
  if (common_.value_or(type) == type) {
    common_ = type;
  } else {
    common_ = are_numbers ? ParquetType::float64 : ParquetType::text;
  }
}

Cell meaning_of(Cell cell, ParquetType type, bool numbers_are_text) {
  if (!numbers_are_text || type == ParquetType::text) return cell;
  if (is_number(type) && stands_for_null(cell)) return std::monostate();
  return number_or_text(std::move(cell));
}

bool fits_column(const Cell& cell, ParquetType type) {
  if (type == ParquetType::text || std::holds_alternative<std::monostate>(cell)) return true;
  const ParquetType own = type_of_cell(cell);
  return own == type || (own == ParquetType::int64 && type == ParquetType::float64);
}

nlohmann::json types_to_json(const ListTypes& lists) {
  const auto word_of = [](ParquetType type) {
    const auto* const found =
        std::find_if(type_words.begin(), type_words.end(), [&](const auto& word) { return word.second == type; });
    ensure(found != type_words.end(), "a list that is no Parquet has few types");
    return std::string(found->first);
  };
  nlohmann::json json = nlohmann::json::array();
  for (const auto& types : lists) {
    json.push_back(types ? nlohmann::json::array() : nlohmann::json());
    for (const ParquetType type : types.value_or(ColumnTypes())) json.back().push_back(word_of(type));
  }
  return json;
}

ListTypes types_from_json(const nlohmann::json& json, const std::string& where) {
  ListTypes lists;
  try {
    for (const auto& words : json) {
      auto& types = lists.emplace_back();
      if (words.is_null()) continue;
      types.emplace();
      for (const auto& word : words) types->push_back(type_of_word(word.get<std::string>(), where));
    }
  } catch (const nlohmann::json::exception& error) {
    fail(Exit::io, "{}: {}", where, error.what());
  }
  return lists;
}

}  // namespace millrace
