#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/io/cell.h"

// Rows of Parquet files through Arrow, whose headers stay inside this module. Of their cells, text, binary data and the
// `bytes` member of a struct (the image columns of Hugging Face data sets) are strings; lists, maps (as pairs of key
// and value) and other structs are JsonText, in which NaN, infinity and bytes are null; a UUID, a date, a time or a
// duration is a text. Values of Arrow's extension types are what they are stored as.
namespace millrace {

// What the cells of a column are, beside null.
enum class ParquetType { boolean, int32, int64, uint64, float64, text, bytes };

// What a column is to who looks for images and captions: bytes, of its own or as the member `bytes` of a struct; text;
// lists of text; lists, maps and structs of anything else; nulls alone, as pandas writes a file without any image.
enum class ColumnHolds { bytes, text, texts, nested, nothing, other };

struct ParquetColumn {
  std::string name;
  std::string type;  // Arrow's name of it: "binary", "int64", "struct<bytes: binary, path: string>"
  ColumnHolds holds = ColumnHolds::other;
  bool is_struct = false;  // the bytes are a member of it
  // That of a column with the same cells; of bytes and what comes as text, or several values, too: text.
  ParquetType cell_type = ParquetType::text;
};

// What a list of numbers is as a Cell: JsonText, or the bytes of its values as f32, whatever their type and however
// deep the list is nested (null = NaN). Tensors of Ray and Arrow are such lists.
enum class ParquetLists { json, floats };

// A page, the page uncompressed and the dictionary before it are 2 GiB each at most, and rows are decoded beside them:
// a writer that looks at sizes every 1,024 rows only, as pyarrow's does, takes 3 times as many images at once.
inline constexpr std::int64_t max_parquet_bytes = 8ll << 30;

// Reads a file front to back, a few rows at a time (a row group can be gigabytes). Errors are Error(io) naming the
// file.
class ParquetReader {
 public:
  // `path` may be s3://BUCKET/KEY. `columns` = the columns that rows bring, in that order; empty = all. Error(io) when
  // one is not there, and from a row on whose decoding takes more than `max_bytes`.
  explicit ParquetReader(const std::string& path, std::vector<std::string> columns = {},
                         ParquetLists lists = ParquetLists::json, std::int64_t max_bytes = max_parquet_bytes);
  ~ParquetReader();
  ParquetReader(ParquetReader&&) noexcept;
  ParquetReader& operator=(ParquetReader&&) noexcept;

  const std::vector<ParquetColumn>& schema() const;  // every column of the file
  std::uint64_t rows() const;                        // of the file
  // The next row's cells, one per chosen column; nothing at the end.
  std::optional<std::vector<Cell>> next();
  // Passes over up to `rows` rows and returns how many there were. Nothing is read for it: the next next() reads from
  // the row group on that holds its row.
  std::uint64_t skip(std::uint64_t rows);
  // Number of the row that next() gives; after an Error, of the first one that cannot be read.
  std::uint64_t row() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Columns of a Parquet file without reading a row.
std::vector<ParquetColumn> parquet_schema(const std::string& path);

}  // namespace millrace
