#include "millrace/io/lists.h"

#include <gmock/gmock.h>

#include <set>

#include "gzip_bytes.h"
#include "millrace/core/storage_error.h"
#include "support.h"

namespace millrace::test {
namespace {

// What Python's csv module read in the same file.
void expect_table(const std::string& name) {
  const auto expected = golden_json("lists/lists.json").at(name);
  ListReader reader(golden("lists/" + name));
  EXPECT_EQ(reader.schema(), expected["header"].get<std::vector<std::string>>()) << name;
  std::size_t row = 0;
  while (const auto cells = reader.next()) {
    ASSERT_LT(row, expected["rows"].size()) << name;
    for (std::size_t i = 0; i < cells->size(); ++i)
      EXPECT_EQ(std::get<std::string>(cells->at(i)), expected["rows"][row][i].get<std::string>())
          << name << " row " << row;
    ++row;
  }
  EXPECT_EQ(row, expected["rows"].size()) << name;
  EXPECT_EQ(reader.damaged_rows(), 0u) << name;
}

TEST(Lists, TablesReadAsPythonReadsThem) {
  for (const char* name : {"plain.csv", "windows.csv", "all_quoted.csv", "random.csv.gz", "plain.tsv", "random.tsv.gz",
                           "empty_lines.csv", "header_only.csv"})
    expect_table(name);
}

void expect_value(const Cell& cell, const nlohmann::json& expected) {
  if (expected.is_null()) {
    EXPECT_TRUE(std::holds_alternative<std::monostate>(cell));
  } else if (expected.is_boolean()) {
    EXPECT_EQ(std::get<bool>(cell), expected.get<bool>());
  } else if (expected.is_string()) {
    EXPECT_EQ(std::get<std::string>(cell), expected.get<std::string>());
  } else if (expected.is_structured()) {
    EXPECT_EQ(nlohmann::json::parse(std::get<JsonText>(cell).text), expected);
  } else if (const auto* large = std::get_if<std::uint64_t>(&cell)) {
    EXPECT_GT(*large, static_cast<std::uint64_t>(INT64_MAX));
    EXPECT_EQ(*large, expected.get<std::uint64_t>());
  } else if (const auto* whole = std::get_if<std::int64_t>(&cell)) {
    EXPECT_EQ(*whole, expected.get<std::int64_t>());
  } else {
    EXPECT_EQ(std::get<double>(cell), expected.get<double>());
  }
}

TEST(Lists, JsonLinesBringTheirTypesAndNullForWhatARowLacks) {
  const std::vector<std::string> columns = {"text", "url", "n", "f", "big", "t", "none", "list", "map", "absent"};
  for (const char* name : {"rows.jsonl", "rows.jsonl.gz"}) {
    const auto expected = golden_json("lists/lists.json").at(name).at("rows");
    ListReader reader(golden(std::string("lists/") + name), columns);
    std::set<std::string> keys;
    for (const auto& row : expected)
      for (const auto& [key, value] : row.items()) keys.insert(key);
    EXPECT_EQ(reader.schema(), std::vector<std::string>(keys.begin(), keys.end()));
    for (const auto& row : expected) {
      const auto cells = reader.next();
      ASSERT_TRUE(cells);
      for (std::size_t i = 0; i < columns.size(); ++i)
        expect_value(cells->at(i), row.contains(columns[i]) ? row[columns[i]] : nlohmann::json());
    }
    EXPECT_FALSE(reader.next());
  }
}

TEST(Lists, ChosenColumnsComeInTheOrderAskedFor) {
  ListReader reader(golden("lists/plain.csv"), {"TEXT", "url", "TEXT"});
  EXPECT_EQ(reader.skip(6), 6u);
  const auto cells = reader.next();
  EXPECT_EQ(std::get<std::string>(cells->at(0)), "inner\"quote");
  EXPECT_EQ(std::get<std::string>(cells->at(1)), "http://a/7.jpg");
  EXPECT_EQ(cells->at(0), cells->at(2));
  EXPECT_EQ(reader.skip(5), 0u);
}

TEST(Lists, LinesOfATextAreUrls) {
  const ScratchDirectory scratch;
  ListReader reader(scratch.write("urls.txt", "http://a/1\r\n\n  \nhttp://a/2"));
  EXPECT_EQ(reader.schema(), std::vector<std::string>{"url"});
  EXPECT_EQ(std::get<std::string>(reader.next()->at(0)), "http://a/1");
  EXPECT_EQ(std::get<std::string>(reader.next()->at(0)), "http://a/2");
  EXPECT_FALSE(reader.next());
  EXPECT_FALSE(ListReader(scratch.write("none.txt", "")).next());
}

TEST(Lists, DamagedRowsAreNullsAndCounted) {
  const ScratchDirectory scratch;
  ListReader table(scratch.write("a.csv", "url,text\nu1,t1\nu2\nu3,t3,x\nu4,t4\n"));
  ListReader lines(scratch.write("a.jsonl", "{\"url\":\"u1\"}\n{\"url\":\n[1]\n{\"url\":\"u4\"}\n"));
  for (ListReader* reader : {&table, &lines}) {
    EXPECT_EQ(std::get<std::string>(reader->next()->at(0)), "u1");
    EXPECT_TRUE(std::holds_alternative<std::monostate>(reader->next()->at(0)));
    EXPECT_TRUE(std::holds_alternative<std::monostate>(reader->next()->at(0)));
    EXPECT_EQ(std::get<std::string>(reader->next()->at(0)), "u4");
    EXPECT_EQ(reader->damaged_rows(), 2u);
  }
}

TEST(Lists, ADamagedRowSaysWhereAndWhy) {
  const ScratchDirectory scratch;
  const auto damage_of = [&](const char* name, const char* text) {
    ListReader reader(scratch.write(name, text));
    reader.skip(1);
    EXPECT_EQ(reader.damage(), "");
    reader.next();
    return reader.damage();
  };
  EXPECT_THAT(damage_of("a.csv", "url,text\n\"u\n1\",t1\n\nu2\nu3,t3\n"),
              testing::EndsWith("a.csv:5: 1 fields instead of 2"));
  EXPECT_THAT(damage_of("a.jsonl", "{}\n\n[1]\n"), testing::EndsWith("a.jsonl:3 does not hold a JSON object"));
  EXPECT_THAT(damage_of("b.jsonl", "{}\n{\"a\":\n{}"),
              testing::AllOf(testing::HasSubstr("b.jsonl:2 is not valid JSON"), testing::HasSubstr("column 6")));
}

TEST(Lists, JsonLinesAreReadAsPythonReadsThem) {
  const ScratchDirectory scratch;
  ListReader reader(scratch.write("a.jsonl",
                                  "{\"path\":\"a.jpg\",\"p\":NaN,\"q\":-Infinity}\n"
                                  "{\"path\":\"\\ud83d.jpg\"}\n"
                                  "{\"path\":\"\xff.jpg\"}\n"
                                  "{\"path\":\"x\",\"path\":\"\\ud83d\\ude00NaN\"}\n"),
                    {"path", "p", "q"});
  const auto first = reader.next();
  EXPECT_EQ(std::get<std::string>(first->at(0)), "a.jpg");
  EXPECT_TRUE(std::holds_alternative<std::monostate>(first->at(1)));
  EXPECT_LT(std::get<double>(first->at(2)), -1e308);
  EXPECT_EQ(std::get<std::string>(reader.next()->at(0)), "\uFFFD.jpg");
  EXPECT_EQ(std::get<std::string>(reader.next()->at(0)), "\uFFFD.jpg");
  EXPECT_EQ(std::get<std::string>(reader.next()->at(0)), "\U0001F600NaN");
  EXPECT_EQ(reader.damaged_rows(), 0u);
  ListReader deep(scratch.write("b.jsonl", "{\"a\":" + std::string(100'000, '[') + "\n"));
  EXPECT_EQ(deep.skip(2), 1u);
  EXPECT_EQ(deep.damaged_rows(), 1u);
}

TEST(Lists, TheFirstThousandRowsTellTheColumnsOfJsonLines) {
  const ScratchDirectory scratch;
  std::string text = "{{\n{\"url\":\"u\"}\n";
  for (int i = 2; i < 999; ++i) text += "{}\n";
  const ListReader reader(scratch.write("a.jsonl", text + "{\"late\":1}\n{\"later\":1}\n"));
  EXPECT_EQ(reader.schema(), (std::vector<std::string>{"late", "url"}));
}

TEST(Lists, AListWithoutRowsHasNoColumns) {
  const ScratchDirectory scratch;
  for (const char* name : {"a.csv", "a.tsv", "a.jsonl"}) {
    ListReader reader(scratch.write(name, ""));
    EXPECT_TRUE(reader.schema().empty()) << name;
    EXPECT_FALSE(reader.next()) << name;
  }
}

// What `text` holds below its header, fields joined by | and rows by newlines with a # before them.
std::string rows_of(const fs::path& path) {
  ListReader reader(path);
  std::string rows;
  while (const auto cells = reader.next()) {
    for (const Cell& cell : *cells) rows += (&cell == &cells->front() ? "#" : "|") + std::get<std::string>(cell);
    rows += "\n";
  }
  EXPECT_EQ(reader.damaged_rows(), 0u);
  return rows;
}

TEST(Lists, AQuoteThatNothingClosesIsText) {
  const ScratchDirectory scratch;
  EXPECT_EQ(rows_of(scratch.write("a.csv", "url,text\nu1,\"t1\nu2,t2\nu3,t3")), "#u1|\"t1\n#u2|t2\n#u3|t3\n");
  // The next quote opens a field or stands in one.
  EXPECT_EQ(
      rows_of(scratch.write("a.tsv", "url\ttext\nu1\t\"t1\nu2\t\"t2\" said\nu3\tsay \"x\"\nu4\t\"t4\n\"u5\tt5\n")),
      "#u1|\"t1\n#u2|t2 said\n#u3|say \"x\"\n#u4|\"t4\n#\"u5|t5\n");
  EXPECT_EQ(rows_of(scratch.write("b.csv", "url,text\nu1,\"a\n\"\"b\"\"\"\nu2,\"\"\nu3,\"c\"d\n")),
            "#u1|a\n\"b\"\n#u2|\n#u3|cd\n");
  // Further than a row may reach.
  std::string alone = "url,text\nu0,\"t0\n";
  for (int i = 0; i < 70; ++i) alone += "u," + std::string(1 << 20, 'x') + "\n";
  ListReader reader(scratch.write("c.csv", alone));
  EXPECT_EQ(reader.skip(100), 71u);
  EXPECT_EQ(reader.damaged_rows(), 0u);
}

TEST(Lists, AListThatIsCutWhileItIsReadIsAFaultOfItsStorage) {
  const ScratchDirectory scratch;
  std::string text = "url\n";
  for (int i = 0; i < 100'000; ++i) text += fmt::format("http://host/{}.jpg\n", i);
  const auto path = scratch.write("a.csv", text);
  ListReader list(path);
  ASSERT_TRUE(list.next());
  fs::resize_file(path, text.size() / 2);
  EXPECT_THROW(while (list.next()){}, StorageError);
}

TEST(Lists, ATrailerOfGzipThatIsCutShortIsAnError) {
  const ScratchDirectory scratch;
  const std::string packed = gzip("image,caption\na.jpg,c\n");
  for (const std::size_t lacking : {1, 4, 8}) {
    const Error error = error_of([&] {
      ListReader list(scratch.write("a.csv.gz", packed.substr(0, packed.size() - lacking)));
      while (list.next()) {
      }
    });
    EXPECT_EQ(error.exit(), Exit::io) << lacking << ": " << error.what();
  }
}

TEST(Lists, LinesThatEndInCarriageReturnsAloneAreRefused) {
  const ScratchDirectory scratch;
  const Error error = error_of([&] { ListReader(scratch.write("a.csv", "image,caption,id\r0.jpg,c,1\r")); });
  EXPECT_NE(std::string(error.what()).find("carriage returns alone"), std::string::npos) << error.what();
  EXPECT_EQ(ListReader(scratch.write("b.csv", "image,\"a\r\n(b)\"\r\n0.jpg,c\r\n")).skip(9), 1u);
}

TEST(Lists, WhatCannotBeReadIsNamed) {
  const ScratchDirectory scratch;
  const auto read_all = [](const fs::path& path, std::vector<std::string> columns = {}) {
    return error_of([&] {
      ListReader reader(path, columns);
      while (reader.next()) {
      }
    });
  };
  const Error endless = read_all(scratch.write("a.csv", "url\nx\n" + std::string((64 << 20) + 1, 'y')));
  EXPECT_EQ(endless.exit(), Exit::io);
  EXPECT_NE(std::string(endless.what()).find("a.csv:3"), std::string::npos) << endless.what();
  const Error column = read_all(scratch.write("b.csv", "url,text\n"), {"caption"});
  EXPECT_NE(column.hint().find("url, text"), std::string::npos);
  const std::string whole = read_file(golden("lists/random.csv.gz"));
  EXPECT_EQ(read_all(scratch.write("c.csv.gz", whole.substr(0, whole.size() / 2))).exit(), Exit::io);
  EXPECT_EQ(read_all("/nowhere/x.csv").exit(), Exit::io);
  EXPECT_EQ(read_all(scratch.write("d.xml", "")).exit(), Exit::io);
}

TEST(Lists, NumbersAreThoseOfJson) {
  EXPECT_EQ(std::get<std::int64_t>(number_or_text(std::string("-12"))), -12);
  EXPECT_EQ(std::get<double>(number_or_text(std::string("0.25"))), 0.25);
  EXPECT_EQ(std::get<double>(number_or_text(std::string("1e3"))), 1000);
  EXPECT_EQ(std::get<double>(number_or_text(std::string("12.5e-1"))), 1.25);
  for (const char* text : {"", "007", "+1", "1.", ".5", "0x10", "nan", " 1", "1 ", "12 px", "1,000", "-",
                           "123456789012345678901", "12345e67", "12E5"})
    EXPECT_EQ(std::get<std::string>(number_or_text(std::string(text))), text);
  EXPECT_EQ(std::get<std::uint64_t>(number_or_text(std::string("12345678901234567890"))), 12345678901234567890u);
  EXPECT_EQ(std::get<bool>(number_or_text(true)), true);
}

}  // namespace
}  // namespace millrace::test
