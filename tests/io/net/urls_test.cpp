#include <cstdlib>

#include "io/support.h"
#include "millrace/io/net/urls.h"

namespace millrace::test {
namespace {

TEST(Urls, SplitsSubstitutesAndExpandsAsWebdatasetDoes) {
  const auto expected = golden_json("braces.json");
  for (const auto& [name, value] : expected["environment"].items())
    ::setenv(name.c_str(), value.get<std::string>().c_str(), 1);
  for (const auto& [pattern, urls] : expected["urls"].items()) {
    EXPECT_EQ(expand_urls({pattern}, Archives::tar), urls.get<std::vector<std::string>>()) << pattern;
  }
  EXPECT_EQ(expand_urls({"s3://a::"}, Archives::tar), std::vector<std::string>{"s3://a"})
      << "an empty part names nothing";
}

TEST(Urls, KeepsTheOrderOfPatternsAndNumbers) {
  ::setenv("WDS_BUCKET", "s3://b", 1);
  EXPECT_EQ(
      expand_urls({"${BUCKET}/{2..1}.tar::http://h/x.tar", "pipe:cat {a,b}.tar"}, Archives::tar),
      (std::vector<std::string>{"s3://b/2.tar", "s3://b/1.tar", "http://h/x.tar", "pipe:cat a.tar", "pipe:cat b.tar"}));
}

TEST(Urls, AnAddressInBracketsIsNotSplit) {
  EXPECT_EQ(expand_urls({"http://[::1]:9123/{0..1}.tar::https://u:p@[fe80::1:0:2]/x.tar::pipe:curl http://[::1]/y.tar"},
                        Archives::tar),
            (std::vector<std::string>{"http://[::1]:9123/0.tar", "http://[::1]:9123/1.tar",
                                      "https://u:p@[fe80::1:0:2]/x.tar", "pipe:curl http://[::1]/y.tar"}));
  EXPECT_EQ(expand_urls({"http://h/[a.tar::http://h/]b.tar"}, Archives::tar),
            (std::vector<std::string>{"http://h/[a.tar", "http://h/]b.tar"}))
      << "only of a host";
}

TEST(Urls, AnUnsetVariableIsNamed) {
  const Error error = error_of([] { expand_urls({"${NOT_SET_ANYWHERE}/1.tar"}, Archives::tar); });
  EXPECT_EQ(error.exit(), Exit::usage);
  EXPECT_NE(std::string(error.what()).find("WDS_NOT_SET_ANYWHERE"), std::string::npos);
}

// Of a misspelt folder all archives are missing.
TEST(Urls, CountsMissingFilesBeyondAFew) {
  const ScratchDirectory scratch;
  const Error error = error_of([&] { expand_urls({(scratch / "{000..199}.tar").string()}, Archives::tar); });
  EXPECT_NE(std::string(error.what()).find("/004.tar and 195 more"), std::string::npos) << error.what();
  EXPECT_EQ(std::string(error.what()).find("/005.tar"), std::string::npos) << error.what();
}

// A range with leading zeros makes names of one length, as it does for a shell.
TEST(Urls, NamesOfTwoLengthsTakeTwoRangesOrTheirFolder) {
  const ScratchDirectory scratch;
  for (const char* name : {"98.tar", "99.tar", "100.tar"}) scratch.write(name, "x");
  const Error error = error_of([&] { expand_urls({(scratch / "{098..100}.tar").string()}, Archives::tar); });
  EXPECT_NE(std::string(error.what()).find("/098.tar"), std::string::npos) << error.what();
  EXPECT_NE(error.hint().find("two ranges, or their folder"), std::string::npos) << error.hint();
  EXPECT_EQ(expand_urls({(scratch / "{98..99}.tar").string(), (scratch / "100.tar").string()}, Archives::tar).size(),
            3u);
  EXPECT_EQ(expand_urls({scratch.path().string()}, Archives::tar).size(), 3u);
}

// As a cache of the Hub has them, copied without what they point to.
TEST(Urls, ALinkToNothingIsNoArchiveThatMayBeLeftOut) {
  const ScratchDirectory scratch;
  scratch.write("0.tar", "x");
  std::filesystem::create_symlink(scratch / "gone", scratch / "1.tar");
  const Error error = error_of([&] { expand_urls({scratch.path().string()}, Archives::tar); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_NE(std::string(error.what()).find("/1.tar"), std::string::npos) << error.what();
  std::filesystem::remove(scratch / "1.tar");
  for (const char* other : {".0.tar", "notes.txt"}) std::filesystem::create_symlink(scratch / "gone", scratch / other);
  EXPECT_EQ(expand_urls({scratch.path().string()}, Archives::tar).size(), 1);
  std::filesystem::create_symlink(scratch / "0.tar", scratch / "2.tar");
  std::filesystem::create_directory_symlink(scratch.path(), scratch / "3.tar");
  EXPECT_EQ(expand_urls({scratch.path().string()}, Archives::tar),
            (std::vector<std::string>{(scratch / "0.tar").string(), (scratch / "2.tar").string()}));
}

TEST(Urls, NamesEveryMissingFile) {
  const ScratchDirectory scratch;
  scratch.write("1.tar", "x");
  const Error error = error_of([&] {
    expand_urls({(scratch / "{0..2}.tar").string(), "file:" + (scratch / "9.tar").string()}, Archives::tar);
  });
  EXPECT_EQ(error.exit(), Exit::io);
  const std::string text = error.what();
  for (const char* name : {"/0.tar", "/2.tar", "/9.tar"}) EXPECT_NE(text.find(name), std::string::npos) << text;
  EXPECT_EQ(text.find("/1.tar"), std::string::npos) << text;
}

TEST(Urls, ADirectoryStandsForItsArchives) {
  const ScratchDirectory scratch;
  for (const char* name :
       {"b.tar", "a.tar.gz", "c.tar.zst", "00000.tar", "00000.parquet", "00000_stats.json", "rows.parquet", "D.TAR",
        "E.Parquet", "x.txt", "l.csv", "m.jsonl.gz", "._a.tar.gz", ".l.csv", "._rows.parquet"}) {
    scratch.write(name, "x");
  }
  scratch.write("below/d.tar", "x");
  const auto in = [&](Archives archives) {
    std::vector<std::string> names;
    for (const std::string& url : expand_urls({scratch.path().string()}, archives))
      names.push_back(fs::path(url).filename());
    return names;
  };
  EXPECT_EQ(in(Archives::tar), (std::vector<std::string>{"00000.tar", "D.TAR", "a.tar.gz", "b.tar", "c.tar.zst"}));
  EXPECT_EQ(in(Archives::parquet), (std::vector<std::string>{"00000.parquet", "E.Parquet", "rows.parquet"}));
  EXPECT_EQ(in(Archives::list), (std::vector<std::string>{"l.csv", "m.jsonl.gz"}));
  EXPECT_EQ(expand_urls({(scratch / "{below,x.txt}").string()}, Archives::tar).size(), 2u);
  EXPECT_EQ(in(Archives::one_kind), in(Archives::tar));
  for (const char* name : {"b.tar", "a.tar.gz", "c.tar.zst", "00000.tar", "D.TAR"}) fs::remove(scratch / name);
  EXPECT_EQ(in(Archives::one_kind), in(Archives::list));
  for (const char* name : {"l.csv", "m.jsonl.gz"}) fs::remove(scratch / name);
  EXPECT_EQ(in(Archives::one_kind), in(Archives::parquet));
}

TEST(Urls, ADirectoryWithoutArchivesIsAnError) {
  const ScratchDirectory scratch;
  EXPECT_EQ(error_of([&] { expand_urls({scratch.path().string()}, Archives::tar); }).exit(), Exit::io);
}

TEST(Urls, AnErrorTellsWhatMakesAnArchiveOfImages) {
  const ScratchDirectory scratch;
  const auto hint = [&](Archives archives) {
    return error_of([&] { expand_urls({scratch.path().string()}, archives); }).hint();
  };
  const std::string command = "`tar --sort=name -cf 00000.tar -C " + scratch.path().string() + " .` makes";
  const auto tells = [](const std::string& text, const std::string& part) { return text.find(part) != text.npos; };
  scratch.write("notes.txt", "x");
  EXPECT_FALSE(tells(hint(Archives::tar), "tar --sort")) << hint(Archives::tar);
  EXPECT_FALSE(tells(hint(Archives::tar), "folders below"));
  // As img2dataset's output_format=files has them: the table is of metadata.
  scratch.write("00000/0.JPG", "x");
  scratch.write("00000.parquet", "x");
  EXPECT_TRUE(tells(hint(Archives::tar), "it holds folders of images: " + command)) << hint(Archives::tar);
  EXPECT_FALSE(tells(hint(Archives::tar), "type parquet")) << hint(Archives::tar);
  EXPECT_TRUE(tells(hint(Archives::tar), "folders below are not searched"));
  scratch.write("rows.parquet", "x");
  EXPECT_TRUE(tells(hint(Archives::tar), "rows.parquet there is for type parquet"));
  // As Hugging Face's image folders are.
  scratch.write("0.png", "x");
  scratch.write("metadata.jsonl", "x");
  EXPECT_TRUE(tells(hint(Archives::tar), "it holds images: " + command)) << hint(Archives::tar);
  EXPECT_TRUE(tells(hint(Archives::tar), "metadata.jsonl there is for type csv"));
  fs::remove(scratch / "metadata.jsonl");
  EXPECT_TRUE(tells(hint(Archives::list), command)) << hint(Archives::list);
}

TEST(Urls, KnowsWhatIsLocal) {
  EXPECT_EQ(local_path("a/b.tar"), "a/b.tar");
  EXPECT_EQ(local_path("file:a.tar"), "a.tar");
  EXPECT_EQ(local_path("file:///a.tar"), "/a.tar");
  for (const char* url : {"-", "pipe:cat x", "http://h/x", "s3://b/k", "gs://b/k"})
    EXPECT_EQ(local_path(url), "") << url;
  EXPECT_EQ(local_path("./odd:name.tar"), "./odd:name.tar");
  EXPECT_TRUE(is_pipe("pipe:ls"));
  EXPECT_FALSE(is_pipe("pipes/a.tar"));
}

}  // namespace
}  // namespace millrace::test
