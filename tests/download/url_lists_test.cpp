#include <gtest/gtest.h>

#include "core/temp_dir.h"
#include "error_of.h"
#include "millrace/core/error.h"
#include "millrace/core/text.h"
#include "millrace/io/parquet_writer.h"
#include "test_data.h"
#include "url_lists.h"

namespace millrace::test {
namespace {

DownloadConfig config_of(std::vector<std::string> urls, std::uint64_t rows_per_file = 2) {
  DownloadConfig config;
  config.urls = std::move(urls);
  config.columns.caption.reset();
  config.rows_per_file = rows_per_file;
  return config;
}

// Ready to be read.
UrlLists open_lists(const DownloadConfig& config) {
  return UrlLists(config, UrlLists(config).find_types());
}

// "0:a b|1:c": the URLs of each shard.
std::string shards_of(const DownloadConfig& config) {
  UrlLists lists = open_lists(config);
  std::string text;
  for (ListSlice slice = lists.read(); !slice.rows.empty(); slice = lists.read()) {
    text += (text.empty() ? "" : "|") + std::to_string(slice.shard) + ":";
    for (std::size_t i = 0; i < slice.rows.size(); ++i) text += (i ? " " : "") + slice.rows[i].url;
  }
  return text;
}

TEST(UrlLists, EachFileIsCutByItself) {
  const TempDir dir;
  dir.write("a.txt", "a\nb\nc\n");
  dir.write("b.txt", "d\n");
  dir.write("c.txt", "");
  dir.write("._a.txt", "Mac OS X");
  dir.write("d.txt", "e\nf\n");
  DownloadConfig config = config_of({dir.path().string()});
  EXPECT_EQ(shards_of(config), "0:a b|1:c|2:d|3:e f");
  config.limit = 4;
  EXPECT_EQ(shards_of(config), "0:a b|1:c|2:d");
  config.limit = 3;
  EXPECT_EQ(shards_of(config), "0:a b|1:c");
  EXPECT_EQ(shards_of(config_of({(dir / "{d,a}.txt").string()}, 10)), "0:e f|1:a b c");
}

TEST(UrlLists, AListWithoutRowsHasNoneAndNoColumns) {
  const TempDir dir;
  dir.write("a.csv", "");
  dir.write("b.csv", "url\na\n");
  dir.write("c.jsonl", "");
  const DownloadConfig config = config_of({dir.path().string()});
  EXPECT_EQ(shards_of(config), "0:a");
  UrlLists lists = open_lists(config);
  EXPECT_TRUE(lists.skip());
  EXPECT_FALSE(lists.skip());
}

TEST(UrlLists, ADamagedRowSaysWhy) {
  const TempDir dir;
  dir.write("a.jsonl", "{{\n{\"url\":\"u\",\"p\":NaN}\n");
  const auto rows = open_lists(config_of({dir.path().string()})).read().rows;
  EXPECT_NE(rows.at(0).damage.find("a.jsonl:1 is not valid JSON"), std::string::npos) << rows.at(0).damage;
  EXPECT_EQ(rows.at(1).damage, "");
  EXPECT_EQ(rows.at(1).url, "u");
}

// nlohmann's message quotes the line up to the place, which may be in the middle of a character.
TEST(UrlLists, WhatIsSaidOfADamagedRowIsShortText) {
  const TempDir dir;
  std::string quoted;
  for (int i = 0; i < 1000; ++i) quoted += "\u201c\u00e9\u201d";
  dir.write("a.jsonl", "{\"caption\": " + quoted + "}\n{\"url\": \"" + quoted + "\xE2\x80\"}\n{\"url\": \"" + quoted);
  const auto rows = open_lists(config_of({dir.path().string()}, 10)).read().rows;
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_NE(rows[0].damage.find("a.jsonl:1 is not valid JSON"), std::string::npos) << rows[0].damage;
  EXPECT_EQ(rows[1].damage, "");
  EXPECT_NE(rows[2].damage.find("a.jsonl:3 is not valid JSON"), std::string::npos) << rows[2].damage;
  for (const auto& row : rows) {
    EXPECT_LT(row.damage.size(), 520u);
    EXPECT_EQ(row.damage, valid_utf8(row.damage));
  }
}

TEST(UrlLists, ComplainsOfListsThatTakeLongToPassOver) {
  const TempDir dir;
  const auto list = dir.write("a.csv.gz", ""), table = dir.write("a.parquet", "");
  fs::resize_file(list, 6'000'000'000);  // with holes
  fs::resize_file(table, 60'000'000'000);
  EXPECT_FALSE(complaint_about_lists({list, table}));
  const auto complaint = complaint_about_lists({list, table, list});
  ASSERT_TRUE(complaint);
  EXPECT_NE(complaint->find("download.urls: 11.2 GiB of lists are no Parquet"), std::string::npos) << *complaint;
}

TEST(UrlLists, OfSeveralCaptionsTheFirstIsTaken) {
  const TempDir dir;
  dir.write("a.jsonl",
            R"({"url": "u", "text": ["", "a cat", "two \"cats\""], "tags": ["x", 1], "size": {"w": 3}, "n": 1})"
            "\n"
            R"({"url": "u", "text": "a dog", "tags": "[1]"})"
            "\n"
            R"({"url": "u", "text": [], "tags": null})"
            "\n"
            R"({"url": "u", "text": {"en": "a cat"}})"
            "\n");
  DownloadConfig config = config_of({dir.path().string()}, 10);
  config.columns.caption = "text";
  const auto slice = open_lists(config).read();
  ASSERT_EQ(slice.rows.size(), 4u);
  EXPECT_EQ(slice.other_names, (std::vector<std::string>{"n", "size", "tags"}));
  EXPECT_EQ(slice.rows[0].caption, "a cat");
  EXPECT_EQ(slice.rows[0].captions, R"(["","a cat","two \"cats\""])");
  EXPECT_EQ(slice.rows[0].others, (std::vector<Cell>{std::int64_t{1}, JsonText{R"({"w":3})"}, JsonText{R"(["x",1])"}}));
  EXPECT_EQ(slice.rows[1].caption, "a dog");
  EXPECT_EQ(slice.rows[1].captions, "");
  EXPECT_EQ(slice.rows[1].others, (std::vector<Cell>{Cell(), Cell(), std::string("[1]")}))
      << "a text that looks like a list";
  EXPECT_EQ(slice.rows[2].caption, std::nullopt);
  EXPECT_EQ(slice.rows[3].damage, "'text' holds a list or map, and not of texts");
}

TEST(UrlLists, ParquetToo) {
  DownloadConfig config = config_of({(data_dir() / "io/parquet/captions.parquet").string()}, 10);
  config.columns.url = "large";
  config.columns.caption = "texts";
  const auto rows = open_lists(config).read().rows;
  EXPECT_EQ(rows.at(0).caption, "a hen");
  EXPECT_EQ(rows.at(1).caption, std::nullopt) << "an empty list";
  EXPECT_EQ(rows.at(3).caption, "one");
  config.urls = {(data_dir() / "io/parquet/rows.parquet").string()};
  config.columns.url = "when";
  config.columns.caption = "tags";
  try {
    UrlLists(config).check();
    FAIL() << "numbers are no captions";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find("download.columns.caption: 'tags' of "), std::string::npos);
  }
}

TEST(UrlLists, WhatIsSkippedIsNumberedTheSame) {
  const TempDir dir;
  dir.write("a.txt", "a\nb\nc\nd\ne\n");
  dir.write("b.txt", "f\n");
  const DownloadConfig config = config_of({dir.path().string()});
  UrlLists lists = open_lists(config);
  EXPECT_TRUE(lists.skip());
  EXPECT_EQ(lists.next_shard(), 1u);
  EXPECT_EQ(lists.read().rows.at(1).url, "d");
  EXPECT_TRUE(lists.skip());
  const ListSlice last = lists.read();
  EXPECT_EQ(last.shard, 3u);
  EXPECT_EQ(last.rows.at(0).url, "f");
  EXPECT_FALSE(lists.skip());
  EXPECT_TRUE(lists.read().rows.empty());
}

TEST(UrlLists, ColumnsAreFoundInAnyCaseAndOthersKept) {
  const TempDir dir;
  dir.write("a.csv", "Url,text,width,score,key,md5\nu,\"a \xFF, b\",640,x,k,0\n");
  DownloadConfig config = config_of({(dir / "a.csv").string()});
  config.columns.caption = "TEXT";
  config.columns.hash = "md5";
  UrlLists lists = open_lists(config);
  const ListSlice slice = lists.read();
  EXPECT_EQ(slice.other_names, (std::vector<std::string>{"score", "md5"}));  // width and key are the metadata's own
  const ListRow& row = slice.rows.at(0);
  EXPECT_EQ(row.url, "u");
  EXPECT_EQ(row.caption, "a \xEF\xBF\xBD, b");
  EXPECT_EQ(row.hash, "0");
  EXPECT_EQ(row.others, (std::vector<Cell>{std::string("x"), std::int64_t{0}}));
}

TEST(UrlLists, ParquetBringsTypesAndLeavesBinaryColumns) {
  const TempDir dir;
  const fs::path path = dir / "a.parquet";
  using Type = ParquetField::Type;
  ParquetWriter writer(
      path,
      {{"URL", Type::text}, {"TEXT", Type::text}, {"WIDTH", Type::int64}, {"jpg2", Type::bytes}, {"p", Type::float64}});
  writer.write({std::string("u"), std::monostate(), std::int64_t{7}, std::string("\xFF"), 0.5});
  writer.commit();
  DownloadConfig config;
  config.urls = {path.string()};
  UrlLists lists = open_lists(config);
  const ListSlice slice = lists.read();
  EXPECT_TRUE(slice.has_captions);
  EXPECT_EQ(slice.rows.at(0).caption, std::nullopt);
  EXPECT_EQ(slice.other_names, (std::vector<std::string>{"WIDTH", "p"}));
  EXPECT_EQ(slice.rows.at(0).others, (std::vector<Cell>{std::int64_t{7}, 0.5}));
}

TEST(UrlLists, HexIdsStayAsTheyAre) {
  const TempDir dir;
  dir.write("a.csv", "url,id,p\nu,12345e67,1e-05\nu,12E5,1.5e3\n");
  const auto rows = open_lists(config_of({(dir / "a.csv").string()})).read().rows;
  EXPECT_EQ(rows.at(0).others, (std::vector<Cell>{std::string("12345e67"), 1e-05}));
  EXPECT_EQ(rows.at(1).others, (std::vector<Cell>{std::string("12E5"), 1500.0}));
}

// As pyarrow has it: 1.10 is a version, and not 1.1.
TEST(UrlLists, AColumnOfTextKeepsWhatLooksLikeANumber) {
  const TempDir dir;
  dir.write("a.csv", "url,version\nu,1.10\nu,1e5\nu,beta\n");
  const auto rows = open_lists(config_of({(dir / "a.csv").string()}, 10)).read().rows;
  EXPECT_EQ(rows.at(0).others, (std::vector<Cell>{std::string("1.10")}));
  EXPECT_EQ(rows.at(1).others, (std::vector<Cell>{std::string("1e5")}));
}

TEST(UrlLists, OthersMayNotBeNamedAsTheMetadataAre) {
  const TempDir dir;
  dir.write("a.csv", "url,status,score\nu,200,x\n");
  DownloadConfig config = config_of({(dir / "a.csv").string()});
  config.columns.others = {"score"};
  UrlLists(config).check();
  config.columns.others = {"score", "Status"};
  try {
    UrlLists(config).check();
    FAIL() << "two columns of one name";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find("download.columns.others: 'status'"), std::string::npos) << error.what();
  }
}

TEST(UrlLists, OthersMayNotBeTheUrlsOrCaptionsInAnyCase) {
  const TempDir dir;
  dir.write("a.csv", "URL,TEXT,WIDTH,md5\nu,t,7,0\n");
  DownloadConfig config;
  config.urls = {(dir / "a.csv").string()};
  config.columns.hash = "md5";
  for (const char* name : {"url", "URL", "text", "TEXT", "width"}) {
    config.columns.others = {"md5", name};
    const Error error = error_of([&] { UrlLists(config).check(); });
    EXPECT_EQ(error.exit(), Exit::usage) << name;
    EXPECT_NE(std::string(error.what()).find("has the name of a column that every archive has"), std::string::npos);
  }
  config.columns.others = {"md5", "WIDTH"};  // the list's own
  EXPECT_EQ(open_lists(config).read().other_names, config.columns.others);
}

TEST(UrlLists, NoColumnIsKeptTwice) {
  const TempDir dir;
  dir.write("a.csv", "url,text,a,b,a\nu,t,1,2,3\n");
  DownloadConfig config = config_of({(dir / "a.csv").string()});
  const auto message = [&] { return std::string(error_of([&] { UrlLists(config).check(); }).what()); };
  EXPECT_NE(message().find("a.csv has several columns 'a'"), std::string::npos) << message();
  config.columns.others = {"a"};
  EXPECT_NE(message().find("a.csv has several columns 'a'"), std::string::npos) << message();
  config.columns.others = {"b", "B"};
  EXPECT_NE(message().find("the column 'b' of "), std::string::npos) << message();
  EXPECT_EQ(error_of([&] { UrlLists(config).check(); }).exit(), Exit::usage);
  config.columns.others = {"b"};
  EXPECT_EQ(open_lists(config).read().rows.at(0).others, (std::vector<Cell>{std::int64_t{2}}));
  dir.write("a.csv", "url,text,c,,\nu,t,1,,\n");  // with commas behind the last column
  config.columns.others = {};
  EXPECT_EQ(open_lists(config).read().other_names, (std::vector<std::string>{"text", "c"}));
}

// "int64 text ": the types that all shards of a list have.
std::string types_of(const DownloadConfig& config) {
  UrlLists lists = open_lists(config);
  const ColumnTypes types = lists.read().other_types;
  for (ListSlice slice = lists.read(); !slice.rows.empty(); slice = lists.read()) EXPECT_EQ(slice.other_types, types);
  return types_to_json({types}).at(0).dump();
}

TEST(UrlLists, AllRowsTellTheTypesOfColumns) {
  const TempDir dir;
  dir.write("a.csv", "url,i,f,s,e,bits\nu,1,2,1,,7\nu,NULL,,x,,\nu,,nan,2,,7\nu,4,0.5,,,true\n");
  DownloadConfig config = config_of({(dir / "a.csv").string()}, 1);
  EXPECT_EQ(types_of(config), R"(["int64","float64","text","text","text"])");
  config.limit = 3;  // which leaves out 0.5 and true
  EXPECT_EQ(types_of(config), R"(["int64","int64","text","text","int64"])");
  dir.write("b.jsonl",
            "{\"url\":\"u\",\"b\":true,\"f\":1,\"m\":1,\"n\":null}\n{\"url\":\"u\",\"f\":0.5,\"m\":\"x\"}\n");
  EXPECT_EQ(types_of(config_of({(dir / "b.jsonl").string()}, 1)), R"(["boolean","float64","text","text"])");
}

TEST(UrlLists, WhatStandsForNoNumberIsNull) {
  const TempDir dir;
  dir.write("a.csv", "url,WIDTH,note\nu,640,\nu,,x\nu,NaN,NaN\n");
  const auto rows = open_lists(config_of({(dir / "a.csv").string()}, 10)).read().rows;
  EXPECT_EQ(rows.at(0).others, (std::vector<Cell>{std::int64_t{640}, std::string()}));
  EXPECT_EQ(rows.at(1).others, (std::vector<Cell>{Cell(), std::string("x")}));
  EXPECT_EQ(rows.at(2).others, (std::vector<Cell>{Cell(), std::string("NaN")}));
}

TEST(UrlLists, ParquetTellsItsTypesAndWhatIsNested) {
  DownloadConfig config = config_of({(data_dir() / "io/parquet/rows.parquet").string()}, 1);
  config.columns.url = "caption";
  config.columns.others = {"small", "huge", "score", "ok", "when", "tags"};
  const auto slice = open_lists(config).read();
  EXPECT_EQ(slice.other_types, (ColumnTypes{ParquetType::int64, ParquetType::uint64, ParquetType::float64,
                                            ParquetType::boolean, ParquetType::text, ParquetType::text}));
  EXPECT_EQ(slice.rows.at(0).others.back(), Cell(JsonText{"[0,1]"}));
}

// With as many bytes as before, so that download.lists cannot tell.
TEST(UrlLists, AListThatChangesItsTypesUnderWayIsRefused) {
  const TempDir dir;
  const DownloadConfig config = config_of({dir.write("a.csv", "url,n\nu,1\nu,2\n").string()}, 1);
  const ListTypes types = UrlLists(config).find_types();
  dir.write("a.csv", "url,n\nu,1\nu,x\n");
  UrlLists lists(config, types);
  EXPECT_EQ(lists.read().rows.size(), 1u);
  const Error error = error_of([&] { lists.read(); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_NE(std::string(error.what()).find("a.csv has changed since"), std::string::npos) << error.what();
}

TEST(UrlLists, AListThatChangesItsColumnsUnderWayIsRefused) {
  const TempDir dir;
  const DownloadConfig config = config_of({dir.write("a.csv", "url,n\nu,1\n").string()}, 1);
  const ListTypes types = UrlLists(config).find_types();
  dir.write("a.csv", "url,n,m\nu,1,2\n");
  const Error error = error_of([&] { UrlLists(config, types).read(); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_NE(std::string(error.what()).find("a.csv has changed since"), std::string::npos) << error.what();
}

TEST(UrlLists, KnownTypesAreNotLookedForAgain) {
  const TempDir dir;
  const DownloadConfig config = config_of({dir.write("a.csv", "url,n\nu,1\n").string()}, 1);
  const ListTypes known = {ColumnTypes{ParquetType::text}};
  EXPECT_EQ(UrlLists(config).find_types(known), known);
  EXPECT_EQ(types_from_json(types_to_json(known), "here"), known);
  EXPECT_EQ(UrlLists(config).find_types({ColumnTypes()}), (ListTypes{ColumnTypes{ParquetType::int64}}))
      << "those of other columns are none";
  EXPECT_EQ(error_of([] { types_from_json(nlohmann::json::parse(R"([["int65"]])"), "here"); }).exit(), Exit::io);
  EXPECT_EQ(error_of([] { types_from_json(nlohmann::json::parse("[[3]]"), "here"); }).exit(), Exit::io);
}

TEST(UrlLists, WhatIsMissingIsNamed) {
  const TempDir dir;
  dir.write("a.csv", "link\nx\n");
  const auto message = [](const DownloadConfig& config, Exit exit = Exit::io) {
    try {
      open_lists(config).read();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), exit);
      return std::string(error.what()) + " / " + error.hint();
    }
    return std::string("no error");
  };
  EXPECT_NE(
      message(config_of({(dir / "a.csv").string()}), Exit::usage).find("download.columns.url; the columns are link"),
      std::string::npos);
  EXPECT_NE(message(config_of({(dir / "b.csv").string()})).find("b.csv"), std::string::npos);
  EXPECT_NE(message(config_of({"https://example.org/list.csv"})).find("no file"), std::string::npos);
  fs::create_directory(dir / "empty");
  EXPECT_NE(message(config_of({(dir / "empty").string()})).find("no lists"), std::string::npos);
  dir.write("a.xml", "");
  EXPECT_NE(message(config_of({(dir / "a.xml").string()})), "no error");
}

}  // namespace
}  // namespace millrace::test
