#include "millrace/dataset/table_split_reader.h"

#include <utility>

#include "millrace/core/storage_error.h"
#include "millrace/dataset/row.h"

namespace millrace {

namespace {

class BrokenReader final : public SplitReader {
 public:
  explicit BrokenReader(std::optional<Rejected> row) : row_(std::move(row)) {}
  std::optional<RawRow> next() override {
    std::optional<RawRow> row;
    if (row_) row = std::move(*row_);
    row_.reset();
    return row;
  }

 private:
  std::optional<Rejected> row_;
};

}  // namespace

TableSplitReader::TableSplitReader(const Archive& archive, std::unique_ptr<Table> table, const Split& split,
                                   std::uint64_t first_row)
    : archive_(archive),
      table_(std::move(table)),
      next_(split.index + first_row * split.count),
      stride_(split.count),
      had_row_(first_row > 0) {}

std::optional<std::variant<TableSplitReader::Row, Rejected>> TableSplitReader::next() {
  if (ended_ || (archive_.limit && next_ >= *archive_.limit)) return std::nullopt;
  // Whether the last row that was had before this reader began is not there any more: NOTE [Rows that were there]. A
  // break counts as a row.
  const auto lacks_row = [this, had_row = std::exchange(had_row_, false)](int breaks) {
    return had_row && next_ - stride_ >= table_->row() + static_cast<std::uint64_t>(breaks);
  };
  try {
    table_->skip(next_ - table_->row());
    if (auto cells = table_->next())
      return Row{std::exchange(next_, next_ + stride_), std::move(*cells), table_->damage()};
    ended_ = true;
    if (!lacks_row(0)) return std::nullopt;
    return lost_rows(archive_, table_->row());
  } catch (const Error& error) {
    if (!is_damage(error)) throw;
    ended_ = true;
    if (table_->row() != next_ && !lacks_row(1)) return std::nullopt;
    return broken_archive(archive_, error.what());
  }
}

std::unique_ptr<SplitReader> make_empty_reader() {
  return std::make_unique<BrokenReader>(std::nullopt);
}

std::unique_ptr<SplitReader> make_broken_reader(const Archive& archive, const Split& split, std::uint64_t first_row,
                                                const std::string& why) {
  std::optional<Rejected> row;
  // Behind the first row that every split has: it was read before, and counts once for what is gone. That one may be
  // this.
  if (first_row == 0 ? split.index == 0 : split.index > 0 || first_row > 1) row = broken_archive(archive, why);
  return std::make_unique<BrokenReader>(std::move(row));
}

}  // namespace millrace
