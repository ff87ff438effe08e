#include <cmath>
#include <map>

#include "millrace/core/storage_error.h"
#include "millrace/io/parquet.h"
#include "millrace/io/parquet_writer.h"
#include "support.h"

namespace millrace::test {
namespace {

// Compares a cell with the reference's value; JSON has no NaN, so null stands for that too.
void expect_cell(const Cell& cell, const nlohmann::json& expected, const std::string& what) {
  if (expected.is_null()) {
    const double* const number = std::get_if<double>(&cell);
    EXPECT_TRUE(std::holds_alternative<std::monostate>(cell) || (number && std::isnan(*number))) << what;
  } else if (expected.is_boolean()) {
    EXPECT_EQ(std::get<bool>(cell), expected.get<bool>()) << what;
  } else if (expected.is_number_integer() && std::holds_alternative<std::int64_t>(cell)) {
    EXPECT_EQ(std::get<std::int64_t>(cell), expected.get<std::int64_t>()) << what;
  } else if (expected.is_number_unsigned() && std::holds_alternative<std::uint64_t>(cell)) {
    EXPECT_EQ(std::get<std::uint64_t>(cell), expected.get<std::uint64_t>()) << what;
  } else if (expected.is_number()) {
    EXPECT_EQ(std::get<double>(cell), expected.get<double>()) << what;
  } else {
    EXPECT_EQ(std::get<std::string>(cell), expected.get<std::string>()) << what;
  }
}

// Columns of bytes stand in the golden file as text of one character a byte.
bool is_binary(const std::string& column) {
  return column == "jpg" || column == "large" || column == "fixed" || column == "image";
}

TEST(Parquet, ReadsEveryColumnAsTheReferenceDoes) {
  const auto expected = golden_json("parquet.json");
  ParquetReader reader(golden("parquet/rows.parquet"));
  ASSERT_EQ(reader.rows(), expected["rows"].size());
  for (const auto& row : expected["rows"]) {
    const auto cells = reader.next();
    ASSERT_TRUE(cells);
    ASSERT_EQ(cells->size(), expected["columns"].size());
    for (std::size_t i = 0; i < cells->size(); ++i) {
      const std::string column = expected["columns"][i];
      if (column == "when" || column == "tags") continue;
      expect_cell((*cells)[i], is_binary(column) && row[i].is_string() ? nlohmann::json(from_latin1(row[i])) : row[i],
                  column);
    }
  }
  EXPECT_FALSE(reader.next());
}

TEST(Parquet, OtherTypesComeAsTextAndSeveralValuesAsJson) {
  ParquetReader reader(golden("parquet/rows.parquet"), {"when", "tags"});
  const auto cells = reader.next();
  EXPECT_EQ(std::get<std::string>(cells->at(0)), "2024-01-01");
  EXPECT_EQ(std::get<JsonText>(cells->at(1)).text, "[0,1]");
}

TEST(Parquet, SeveralValuesInACellAreTheJsonOfTheReference) {
  const auto expected = golden_json("nested.json");
  ParquetReader reader(golden("parquet/nested.parquet"));
  for (const ParquetColumn& column : reader.schema()) EXPECT_EQ(column.holds, ColumnHolds::nested) << column.name;
  for (const auto& row : expected["rows"]) {
    const auto cells = reader.next();
    ASSERT_TRUE(cells);
    ASSERT_EQ(cells->size(), row.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
      const auto* const several = std::get_if<JsonText>(&cells->at(i));
      const std::string json = several ? several->text : "null";
      EXPECT_EQ(nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false), row[i])
          << expected["columns"][i] << " " << json;
    }
  }
  EXPECT_FALSE(reader.next());
  EXPECT_EQ(std::get<JsonText>(ParquetReader(golden("parquet/nested.parquet"), {"struct"}).next()->at(0)).text,
            R"({"z":1,"a":"x\"y"})")
      << "members as the file has them";
}

// One such text would cost all rows from its batch on.
TEST(Parquet, TextsThatAreNotUtf8WithinOtherValuesAreReplacedInPart) {
  ParquetReader reader(golden("parquet/odd_texts.parquet"));
  const auto text = [](const char* json) { return JsonText{json}; };
  EXPECT_EQ(reader.next(), (std::vector<Cell>{std::int64_t{1}, text("{\"text\":\"caf\uFFFD\",\"number\":1}"),
                                              text("[[\"caf\uFFFD\",1]]"), text("[[[1,\"caf\uFFFD\"]]]")}));
  EXPECT_EQ(reader.next(), (std::vector<Cell>{std::int64_t{2}, text(R"({"text":"b","number":2})"), text(R"([["b",2]])"),
                                              text(R"([[[2,"b"]]])")}));
  EXPECT_TRUE(reader.next());
  EXPECT_FALSE(reader.next());
}

TEST(Parquet, TheSchemaTellsWhatCellsAre) {
  const auto words_of = [](const char* name) {
    static const std::map<ParquetType, std::string> words = {{ParquetType::boolean, "boolean"},
                                                             {ParquetType::int64, "int64"},
                                                             {ParquetType::uint64, "uint64"},
                                                             {ParquetType::float64, "float64"},
                                                             {ParquetType::text, "text"}};
    std::string text;
    for (const ParquetColumn& column : parquet_schema(golden(name))) text += words.at(column.cell_type) + " ";
    return text;
  };
  EXPECT_EQ(words_of("parquet/rows.parquet"),
            "text text text text text text int64 int64 int64 uint64 float64 float64 boolean text text ");
  EXPECT_EQ(words_of("parquet/views_decimals.parquet"), "text text float64 float64 ");
  EXPECT_EQ(words_of("parquet/dictionaries.parquet"), "text text text int64 ");
}

TEST(Parquet, ListsOfTextsAreJson) {
  ParquetReader reader(golden("parquet/captions.parquet"), {"texts", "large", "pair"});
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(reader.schema()[i].holds, ColumnHolds::texts) << i;
  }
  const std::optional<std::string> none;
  const std::vector<std::array<std::optional<std::string>, 3>> rows = {
      {R"(["a hen","une \"poule\" é"])", R"(["x"])", R"(["p","q"])"},
      {"[]", R"(["","y"])", R"(["v","w"])"},
      {none, R"(["z"])", R"(["r","s"])"},
      {R"(["one",null])", none, R"(["t","u"])"}};
  for (const auto& row : rows) {
    const auto cells = reader.next();
    ASSERT_TRUE(cells);
    for (std::size_t i = 0; i < row.size(); ++i) {
      const auto* const several = std::get_if<JsonText>(&cells->at(i));
      EXPECT_EQ(several ? std::optional(several->text) : none, row[i]) << i;
    }
  }
  EXPECT_EQ(ParquetReader(golden("parquet/rows.parquet")).schema().back().holds, ColumnHolds::nested)
      << "a list of numbers";
}

TEST(Parquet, ViewsAreBytesAndTextAndDecimalsAreNumbers) {
  ParquetReader reader(golden("parquet/views_decimals.parquet"));
  EXPECT_EQ(reader.schema()[0].type, "binary_view");
  EXPECT_EQ(reader.schema()[1].type, "string_view");
  EXPECT_EQ(reader.schema()[0].holds, ColumnHolds::bytes);
  EXPECT_EQ(reader.schema()[1].holds, ColumnHolds::text);
  using Row = std::vector<Cell>;
  EXPECT_EQ(reader.next(), (Row{std::string("J\xff"), std::string("short"), 0.25, 1.5}));
  EXPECT_EQ(reader.next(), (Row{Cell(), std::string("a caption of more than twelve bytes"), Cell(), 1e40}));
  EXPECT_EQ(reader.next(), (Row{std::string(40, 'x'), Cell(), -7.5, Cell()}));
}

// As pandas' categories are written.
TEST(Parquet, DictionariesHoldWhatTheirValuesAre) {
  ParquetReader reader(golden("parquet/dictionaries.parquet"));
  const auto& schema = reader.schema();
  ASSERT_EQ(schema.size(), 4u);
  EXPECT_EQ(schema[0].type.substr(0, 24), "dictionary<values=binary");
  EXPECT_EQ(schema[0].holds, ColumnHolds::bytes);
  EXPECT_EQ(schema[1].holds, ColumnHolds::text);
  EXPECT_EQ(schema[2].holds, ColumnHolds::text);
  EXPECT_EQ(schema[3].holds, ColumnHolds::other);
  const Cell none;
  const auto text = [](const char* value) { return Cell(std::string(value)); };
  const std::vector<std::vector<Cell>> rows = {{text("J\xff"), text("a cat"), text("0.jpg"), Cell(std::int64_t{3})},
                                               {none, text("a dog"), text("1.jpg"), Cell(std::int64_t{4})},
                                               {text("x"), none, text("0.jpg"), none},
                                               {text("J\xff"), text("a cat"), none, Cell(std::int64_t{3})}};
  for (const auto& row : rows) {
    const auto cells = reader.next();
    ASSERT_TRUE(cells);
    EXPECT_TRUE(*cells == row);
  }
  EXPECT_FALSE(reader.next());
}

// What pandas, Hugging Face's datasets and DuckDB write for JSON, UUIDs and bytes that are booleans.
TEST(Parquet, ExtensionTypesAreWhatTheyAreStoredAs) {
  using Row = std::vector<Cell>;
  ParquetReader reader(golden("parquet/extensions.parquet"));
  const std::string uuid = "00010203-0405-0607-0809-0a0b0c0d0e0f", other = "ffffffff-ffff-ffff-ffff-ffffffffffff";
  const JsonText none{"[]"}, null{"[null]"}, hens{R"(["a hen","a hen"])"};
  const JsonText uuids{fmt::format(R"(["{}","{}"])", uuid, other)};
  EXPECT_EQ(reader.next(), (Row{"J", "a hen", uuid, std::int64_t{1}, JsonText{"[1,2]"}, hens, uuids, hens}));
  EXPECT_EQ(reader.next(), (Row{"J", "a hen", other, std::int64_t{0}, none, null, null, null}));
  EXPECT_EQ(reader.next(), (Row{"J", Cell(), Cell(), Cell(), Cell(), none, none, none}));
  const auto& schema = reader.schema();
  EXPECT_EQ(schema[1].holds, ColumnHolds::text);
  EXPECT_EQ(schema[2].holds, ColumnHolds::other) << "16 bytes are no image";
  EXPECT_EQ(schema[2].cell_type, ParquetType::text);
  EXPECT_EQ(schema[3].cell_type, ParquetType::int64);
  EXPECT_EQ(schema[4].holds, ColumnHolds::nested);
  EXPECT_EQ(schema[5].holds, ColumnHolds::texts);
  EXPECT_EQ(schema[7].holds, ColumnHolds::texts);

  EXPECT_EQ(ParquetReader(golden("parquet/logical_types.parquet")).next(), (Row{"a hen", uuid}))
      << "of a writer that is not Arrow";
}

TEST(Parquet, BringsTheChosenColumnsInTheOrderAskedFor) {
  ParquetReader reader(golden("parquet/rows.parquet"), {"width", "image", "caption", "width"});
  EXPECT_EQ(reader.skip(100), 100u);
  const auto cells = reader.next();
  ASSERT_EQ(cells->size(), 4u);
  EXPECT_EQ(std::get<std::int64_t>(cells->at(0)), 100);
  EXPECT_EQ(std::get<std::string>(cells->at(1)), std::string(101, static_cast<char>(100)));
  EXPECT_EQ(std::get<std::string>(cells->at(2)), "caption 100 é");
  EXPECT_EQ(std::get<std::int64_t>(cells->at(3)), 100);
}

TEST(Parquet, SkipsWithinAndOverRowGroups) {
  for (const std::uint64_t start : {0, 1, 39, 40, 41, 80, 120, 149, 150}) {
    ParquetReader reader(golden("parquet/rows.parquet"), {"small"});
    EXPECT_EQ(reader.skip(start), start);
    for (std::uint64_t row = start; row < 150; row += 3) {
      EXPECT_EQ(std::get<std::int64_t>(reader.next()->at(0)), static_cast<std::int64_t>(row));
      EXPECT_EQ(reader.skip(2), std::min<std::uint64_t>(2, 149 - row));
    }
    EXPECT_EQ(reader.skip(10), 0u);
  }
}

// Arrow takes the end of the file for the end of a column.
TEST(Parquet, AFileThatIsCutWhileItIsReadIsAFaultOfItsStorage) {
  const ScratchDirectory scratch;
  const auto path = scratch / "a.parquet";
  fs::copy_file(golden("parquet/rows.parquet"), path);
  ParquetReader reader(path.string(), {"small"});
  for (int row = 0; row < 40; ++row) ASSERT_TRUE(reader.next());
  fs::resize_file(path, 4);
  int rows = 40;
  EXPECT_THROW(while (reader.next())++ rows, StorageError);
  EXPECT_LT(rows, 150);
}

// Row 57 lies in the second of four groups of 40 rows; small skips are as one large one.
TEST(Parquet, SkipsAddUpUntilARowIsWanted) {
  ParquetReader reader(golden("parquet/rows.parquet"), {"small"});
  for (int i = 0; i < 19; ++i) EXPECT_EQ(reader.skip(3), 3u);
  EXPECT_EQ(reader.row(), 57u);
  EXPECT_EQ(std::get<std::int64_t>(reader.next()->at(0)), 57);
  EXPECT_EQ(reader.skip(1000), 92u);
  EXPECT_EQ(reader.skip(1), 0u);
  EXPECT_FALSE(reader.next());
}

// A few kilobytes may hold any number of them.
TEST(Parquet, RowsThatTakeTooMuchMemoryAreAnError) {
  const ScratchDirectory scratch;
  const std::string path = scratch / "zeros.parquet";
  ParquetWriter writer(path, {{"jpg", ParquetField::Type::bytes}});
  for (int row = 0; row < 64; ++row) writer.write({std::string(1 << 20, '\0')});
  writer.commit();
  EXPECT_TRUE(ParquetReader(path).next());
  const Error error = error_of([&] { ParquetReader(path, {}, ParquetLists::json, /*max_bytes=*/8 << 20).next(); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_NE(std::string(error.what()).find("zeros.parquet: "), std::string::npos) << error.what();
  EXPECT_NE(std::string(error.what()).find("more than 8.0 MiB"), std::string::npos) << error.what();
}

TEST(Parquet, ListsItsSchema) {
  const auto schema = parquet_schema(golden("parquet/rows.parquet"));
  ASSERT_EQ(schema.size(), 15u);
  EXPECT_EQ(schema[0].name, "jpg");
  EXPECT_EQ(schema[3].type, "struct<bytes: binary, path: string>");
  for (std::size_t i = 0; i < schema.size(); ++i) {
    const auto holds = i < 4    ? ColumnHolds::bytes
                       : i < 6  ? ColumnHolds::text
                       : i < 14 ? ColumnHolds::other
                                : ColumnHolds::nested;
    EXPECT_EQ(schema[i].holds, holds) << schema[i].name;
    EXPECT_EQ(schema[i].is_struct, i == 3) << schema[i].name;
  }
}

TEST(Parquet, AnEmptyTableHasNoRows) {
  ParquetReader reader(golden("parquet/empty.parquet"), {"jpg"});
  EXPECT_EQ(reader.rows(), 0u);
  EXPECT_FALSE(reader.next());
  EXPECT_EQ(reader.skip(1), 0u);
}

TEST(Parquet, AnUnknownColumnIsNamedWithThoseThatExist) {
  const Error error = error_of([] { ParquetReader(golden("parquet/empty.parquet"), {"png"}); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_NE(std::string(error.what()).find("'png'"), std::string::npos);
  EXPECT_NE(error.hint().find("jpg, caption"), std::string::npos);
}

TEST(Parquet, BrokenFilesAreErrorsThatNameThem) {
  const ScratchDirectory scratch;
  const std::string whole = read_file(golden("parquet/rows.parquet"));
  std::string damaged = whole;
  for (std::size_t i = 100; i < damaged.size() / 2; i += 50) damaged[i] = static_cast<char>(~damaged[i]);
  for (const std::string& content : {std::string(), std::string("PAR1"), whole.substr(0, whole.size() - 10), damaged}) {
    const fs::path path = scratch.write("bad.parquet", content);
    const Error error = error_of([&] {
      ParquetReader reader(path);
      while (reader.next()) {
      }
    });
    EXPECT_EQ(error.exit(), Exit::io);
    EXPECT_NE(std::string(error.what()).find("bad.parquet"), std::string::npos) << error.what();
  }
  EXPECT_EQ(error_of([] { ParquetReader("/nowhere/x.parquet"); }).exit(), Exit::io);
}

TEST(Parquet, AnEncryptedFileIsCalledSo) {
  const ScratchDirectory scratch;
  std::string content = read_file(golden("parquet/empty.parquet"));
  content.replace(content.size() - 4, 4, "PARE");  // the mark of a footer that is encrypted
  const fs::path path = scratch.write("secret.parquet", content);
  const Error error = error_of([&] { ParquetReader reader(path); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_EQ(error.what(), path.string() + " is encrypted, which is not read here");
}

}  // namespace
}  // namespace millrace::test
