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
    : archive_(archive), table_(std::move(table)), next_(split.index + first_row * split.count), stride_(split.count) {}

std::optional<std::variant<TableSplitReader::Row, Rejected>> TableSplitReader::next() {
  if (ended_ || (archive_.limit && next_ >= *archive_.limit)) return std::nullopt;
  try {
    table_->skip(next_ - table_->row());
    if (auto cells = table_->next())
      return Row{std::exchange(next_, next_ + stride_), std::move(*cells), table_->damage()};
    ended_ = true;
    return std::nullopt;
  } catch (const AccessError&) {
    throw;
  } catch (const Error& error) {
    ended_ = true;
    if (table_->row() != next_) return std::nullopt;
    return broken_archive(archive_, error.what());
  }
}

std::unique_ptr<SplitReader> make_empty_reader() {
  return std::make_unique<BrokenReader>(std::nullopt);
}

std::unique_ptr<SplitReader> make_broken_reader(const Archive& archive, const Split& split, std::uint64_t first_row,
                                                const std::string& why) {
  std::optional<Rejected> row;
  if (split.index == 0 && first_row == 0) row = broken_archive(archive, why);
  return std::make_unique<BrokenReader>(std::move(row));
}

}  // namespace millrace
