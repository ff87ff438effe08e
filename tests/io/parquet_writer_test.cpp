#include "millrace/io/parquet_writer.h"
#include "support.h"

namespace millrace::test {
namespace {

using Type = ParquetField::Type;

TEST(ParquetWriter, RowsComeBackAsTheyWere) {
  const ScratchDirectory scratch;
  const std::vector<std::vector<Cell>> rows = {
      {true, std::int64_t{-7}, std::int64_t{1} << 40, 0.25, std::string("é"), std::string("\xFF\0x", 3)},
      {Cell(), Cell(), Cell(), Cell(), Cell(), Cell()},
      {false, std::int64_t{0}, std::int64_t{1}, 2.0, std::string(), std::string()},
  };
  for (const std::size_t group_rows : {1, 2, 100}) {
    const fs::path path = scratch / "rows.parquet";
    ParquetWriter writer(path,
                         {{"flag", Type::boolean},
                          {"small", Type::int32},
                          {"large", Type::int64},
                          {"real", Type::float64},
                          {"text", Type::text},
                          {"bytes", Type::bytes}},
                         group_rows);
    for (const auto& row : rows) writer.write(row);
    const auto written = writer.commit();
    EXPECT_EQ(written.bytes, fs::file_size(path));

    ParquetReader reader(path);
    EXPECT_EQ(reader.rows(), rows.size());
    for (const auto& row : rows) EXPECT_EQ(reader.next(), row);
    std::string types;
    for (const ParquetColumn& column : reader.schema()) types += column.type + " ";
    EXPECT_EQ(types, "bool int32 int64 double string binary ");
  }
}

// As Hive and Impala write it: what is wrong with one text is no matter of the rows behind it.
TEST(ParquetWriter, TextThatIsNotUtf8ComesAsItIs) {
  const ScratchDirectory scratch;
  ParquetWriter writer(scratch / "a.parquet", {{"x", Type::text}});
  for (int row = 0; row < 200; ++row) writer.write({row == 7 ? "caf\xE9" : fmt::to_string(row)});
  writer.commit();
  ParquetReader reader(scratch / "a.parquet");
  for (int row = 0; row < 200; ++row)
    EXPECT_EQ(std::get<std::string>(reader.next().value().at(0)), row == 7 ? "caf\xE9" : fmt::to_string(row));
}

TEST(ParquetWriter, WholeNumbersFillColumnsOfNumbers) {
  const ScratchDirectory scratch;
  ParquetWriter writer(scratch / "a.parquet", {{"x", Type::float64}});
  writer.write({std::int64_t{3}});
  writer.commit();
  EXPECT_EQ(std::get<double>(ParquetReader(scratch / "a.parquet").next()->at(0)), 3.0);
}

TEST(ParquetWriter, NumbersWithoutSignsMayHave64Bits) {
  const ScratchDirectory scratch;
  ParquetWriter writer(scratch / "a.parquet", {{"x", Type::uint64}});
  const std::vector<Cell> cells = {std::uint64_t{18446744073709551615u}, std::int64_t{7}, Cell()};
  for (const Cell& cell : cells) writer.write({cell});
  writer.commit();
  ParquetReader reader(scratch / "a.parquet");
  EXPECT_EQ(reader.schema().at(0).type, "uint64");
  for (const Cell& cell : cells) EXPECT_EQ(reader.next()->at(0), cell);
}

TEST(ParquetWriter, WhatIsNotCommittedLeavesNothing) {
  const ScratchDirectory scratch;
  {
    ParquetWriter writer(scratch / "a.parquet", {{"x", Type::text}}, 1);
    writer.write({std::string("y")});
  }
  EXPECT_TRUE(fs::is_empty(scratch.path()));
  EXPECT_EQ(error_of([] { ParquetWriter("/nowhere/a.parquet", {{"x", Type::text}}); }).exit(), Exit::io);
}

}  // namespace
}  // namespace millrace::test
