#include "millrace/dataset/table_split_reader.h"

#include <utility>

#include "millrace/core/storage_error.h"
#include "millrace/dataset/row.h"

namespace millrace {

TableSplitReader::TableSplitReader(const Archive& archive, std::unique_ptr<Table> table, const Split& split,
                                   std::uint64_t first_row)
    : archive_(archive), table_(std::move(table)), split_(split), first_row_(first_row), next_(first_row) {}

std::optional<std::variant<TableSplitReader::Row, Rejected>> TableSplitReader::next() {
  const std::uint64_t row = split_.row(next_);
  if (ended_ || (archive_.limit && row >= *archive_.limit)) return std::nullopt;
  try {
    table_->skip(row - table_->row());
    if (auto cells = table_->next()) {
      ++next_;
      return Row{row, std::move(*cells), table_->damage()};
    }
    ended_ = true;
    if (!lacks_row_before(split_, first_row_, table_->row())) return std::nullopt;
    return lost_rows(archive_, table_->row());
  } catch (const Error& error) {
    if (!is_damage(error)) throw;
    ended_ = true;
    if (table_->row() != row && !lacks_row_before(split_, first_row_, table_->row() + 1)) return std::nullopt;
    return broken_archive(archive_, error.what());
  }
}

std::unique_ptr<SplitReader> make_broken_reader(const Archive& archive, const Split& split, std::uint64_t first_row,
                                                const std::string& why) {
  // The break is the archive's only row.
  const bool is_its_turn = first_row == 0 ? split.row(0) == 0 : lacks_row_before(split, first_row, 1);
  return make_one_row_reader(is_its_turn ? std::optional(broken_archive(archive, why)) : std::nullopt);
}

}  // namespace millrace
