#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "millrace/dataset/manifest.h"
#include "millrace/dataset/source.h"
#include "millrace/dataset/table.h"

namespace millrace {

// One split of a table from one of its rows on.
class TableSplitReader {
 public:
  struct Row {
    std::uint64_t number;  // of the archive
    std::vector<Cell> cells;
    std::string damage;  // why they are all null, see Table
  };

  // `archive` must outlive the split.
  TableSplitReader(const Archive& archive, std::unique_ptr<Table> table, const Split& split, std::uint64_t first_row);
  // Nothing at the end. A table that breaks off ends with a Rejected, in the split whose turn it is.
  std::optional<std::variant<Row, Rejected>> next();
  bool is_untyped() const { return table_->is_untyped(); }

 private:
  const Archive& archive_;
  const std::unique_ptr<Table> table_;
  const Split split_;
  const std::uint64_t first_row_;
  std::uint64_t next_;  // row of the split
  bool ended_ = false;
};

// Stands for a table of which nothing can be read: its first row is Rejected.
std::unique_ptr<SplitReader> make_broken_reader(const Archive& archive, const Split& split, std::uint64_t first_row,
                                                const std::string& why);

}  // namespace millrace
