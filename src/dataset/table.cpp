#include "millrace/dataset/table.h"

#include <algorithm>

#include "millrace/io/archive_name.h"
#include "millrace/io/lists.h"
#include "millrace/io/net/urls.h"

namespace millrace {

namespace {

class ParquetTable final : public Table {
 public:
  ParquetTable(const std::string& path, const std::vector<std::string>& columns, ParquetLists lists)
      : reader_(path, columns, lists) {}
  std::optional<std::vector<Cell>> next() override { return reader_.next(); }
  std::uint64_t skip(std::uint64_t rows) override { return reader_.skip(rows); }
  std::uint64_t row() const override { return reader_.row(); }
  bool is_untyped() const override { return false; }

 private:
  ParquetReader reader_;
};

class ListTable final : public Table {
 public:
  ListTable(const std::string& path, const std::vector<std::string>& columns)
      : reader_(path, columns), untyped_(list_format(path) != ListFormat::jsonl) {}
  std::optional<std::vector<Cell>> next() override { return reader_.next(); }
  std::string damage() const override { return reader_.damage(); }
  std::uint64_t skip(std::uint64_t rows) override { return reader_.skip(rows); }
  std::uint64_t row() const override { return reader_.row(); }
  bool is_untyped() const override { return untyped_; }

 private:
  ListReader reader_;
  const bool untyped_;
};

bool is_parquet(std::string_view path) {
  return is_kind(path, ArchiveKind::parquet);
}

}  // namespace

bool is_table(std::string_view path) {
  const auto name = try_archive_name(path);
  return name && name->kind != ArchiveKind::tar;
}

std::vector<TableColumn> table_columns(const std::string& path) {
  std::vector<TableColumn> columns;
  if (is_parquet(path)) {
    for (const ParquetColumn& column : parquet_schema(path))
      columns.push_back({column.name, column.holds, column.is_struct});
  } else {
    const ListReader list(local_path(path));
    for (const std::string& name : list.schema()) columns.push_back({name, ColumnHolds::text});
  }
  return columns;
}

std::unique_ptr<Table> open_table(const std::string& path, const std::vector<std::string>& columns,
                                  ParquetLists lists) {
  if (is_parquet(path)) return std::make_unique<ParquetTable>(path, columns, lists);
  return std::make_unique<ListTable>(local_path(path), columns);
}

std::uint64_t count_table_rows(const std::string& path, std::uint64_t most) {
  if (is_parquet(path)) return std::min(most, ParquetReader(path).rows());
  return ListReader(local_path(path)).skip(most);
}

}  // namespace millrace
