#include "millrace/dataset/table_split_reader.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "error_of.h"
#include "millrace/core/storage_error.h"

namespace millrace {
namespace {

// A table whose second row throws.
class BreakingTable final : public Table {
 public:
  explicit BreakingTable(std::function<void()> break_off) : break_off_(std::move(break_off)) {}

  std::optional<std::vector<Cell>> next() override {
    if (row_ > 0) break_off_();
    ++row_;
    return std::vector<Cell>{std::string("first")};
  }
  std::uint64_t skip(std::uint64_t) override { return 0; }
  std::uint64_t row() const override { return row_; }
  bool is_untyped() const override { return false; }

 private:
  const std::function<void()> break_off_;
  std::uint64_t row_ = 0;
};

using test::error_of;

const Archive table_archive{.path = "a.parquet", .name = "a", .rows = {}, .limit = {}};

std::optional<std::variant<TableSplitReader::Row, Rejected>> row_behind_break(std::function<void()> break_off) {
  TableSplitReader reader(table_archive, std::make_unique<BreakingTable>(std::move(break_off)), {0, 0, 1}, 0);
  EXPECT_TRUE(std::holds_alternative<TableSplitReader::Row>(reader.next().value()));
  return reader.next();
}

TEST(TableSplitReader, DamageIsARowAndNothingElseIs) {
  const auto damaged = row_behind_break([] { fail(Exit::io, "a.parquet: a page is damaged"); });
  EXPECT_EQ(std::get<Rejected>(damaged.value()).reason, RejectReason::archive_error);
  EXPECT_EQ(error_of([] { row_behind_break([] { ensure(false, "rows have cells"); }); }).exit(), Exit::bug);
  EXPECT_THROW(row_behind_break([] { throw StorageError("a.parquet", "EIO", "cannot read a.parquet"); }), StorageError);
}

}  // namespace
}  // namespace millrace
