#pragma once
#include <memory>
#include <string>
#include <vector>

#include "millrace/core/files.h"
#include "millrace/io/parquet.h"

namespace millrace {

struct ParquetField {
  using Type = ParquetType;
  std::string name;
  Type type = Type::text;
};

// Writes rows to a Parquet file that appears with `commit` (Snappy, as Arrow's default; row groups of `group_rows` rows
// or 64 MiB of content).
class ParquetWriter {
 public:
  ParquetWriter(const fs::path& path, std::vector<ParquetField> fields, std::size_t group_rows = 10'000);
  ~ParquetWriter();

  // One cell per field: null, or a value of the field's type (whole numbers also fill float64, JsonText fills text).
  // Text that is no UTF-8 must not get here.
  void write(const std::vector<Cell>& row);
  AtomicFile::Written commit();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace
