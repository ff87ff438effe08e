#include "millrace/io/lists.h"
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
    EXPECT_EQ(nlohmann::json::parse(std::get<std::string>(cell)), expected);
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
    EXPECT_EQ(reader.schema().size(), expected[0].size());
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

TEST(Lists, WhatCannotBeReadIsNamed) {
  const ScratchDirectory scratch;
  const auto read_all = [](const fs::path& path, std::vector<std::string> columns = {}) {
    return error_of([&] {
      ListReader reader(path, columns);
      while (reader.next()) {
      }
    });
  };
  const Error unclosed = read_all(scratch.write("a.csv", "url\nx\n\"y\nz\n"));
  EXPECT_EQ(unclosed.exit(), Exit::io);
  EXPECT_NE(std::string(unclosed.what()).find("a.csv:3"), std::string::npos) << unclosed.what();
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
  for (const char* text :
       {"", "007", "+1", "1.", ".5", "0x10", "nan", " 1", "1 ", "12 px", "1,000", "-", "12345678901234567890"})
    EXPECT_EQ(std::get<std::string>(number_or_text(std::string(text))), text);
  EXPECT_EQ(std::get<bool>(number_or_text(true)), true);
}

}  // namespace
}  // namespace millrace::test
