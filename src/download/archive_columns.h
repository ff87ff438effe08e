#pragma once
#include <algorithm>
#include <array>
#include <string_view>

#include "millrace/io/parquet.h"

// The columns that every archive's table has, named and typed as img2dataset does. Those of the list come before them.
namespace millrace {

inline constexpr const char *caption_column = "caption", *url_column = "url", *image_column = "jpg";

// Of a row: what became of it.
struct OutcomeColumn {
  const char* name;
  ParquetType type;
};
inline constexpr std::array<OutcomeColumn, 9> outcome_columns = {{
    {"key", ParquetType::text},
    {"status", ParquetType::text},
    {"error_message", ParquetType::text},
    {"width", ParquetType::int32},
    {"height", ParquetType::int32},
    {"original_width", ParquetType::int32},
    {"original_height", ParquetType::int32},
    {"exif", ParquetType::text},
    {"sha256", ParquetType::text},
}};

// Whether a list's own column must not be called so.
inline bool is_archive_column(std::string_view name) {
  return name == caption_column || name == url_column || name == image_column ||
         std::any_of(outcome_columns.begin(), outcome_columns.end(),
                     [&](const OutcomeColumn& column) { return column.name == name; });
}

}  // namespace millrace
