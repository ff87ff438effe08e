#include <cstdlib>

#include "core/file_size_limit.h"
#include "millrace/io/tar_writer.h"
#include "support.h"

namespace millrace::test {
namespace {

TarSample sample(const std::string& key) {
  return {key, {{"txt", "words"}, {"jpg", std::string(1000, 'j')}, {"json", "{}"}}};
}

TEST(TarWriter, WritesPlainUstarWithSortedFields) {
  const ScratchDirectory scratch;
  TarWriter writer(scratch / "a.tar");
  writer.write(sample("000"));
  const auto written = writer.commit();
  const std::string bytes = read_file(scratch / "a.tar");
  EXPECT_EQ(written.bytes, bytes.size());
  EXPECT_EQ(written.digest, hash128(bytes));
  EXPECT_EQ(bytes.substr(0, 100), std::string("000.jpg") + std::string(93, '\0'));
  const auto octal = [&](std::size_t at) { return std::strtoul(bytes.c_str() + at, nullptr, 8); };
  EXPECT_EQ(octal(100), 0644u);  // mode
  EXPECT_EQ(octal(108), 0u);     // user
  EXPECT_EQ(octal(116), 0u);     // group
  EXPECT_EQ(octal(124), 1000u);  // bytes
  EXPECT_EQ(octal(136), 0u);     // time
  EXPECT_EQ(bytes.substr(257, 8), std::string("ustar\0"
                                              "00",
                                              8));
  EXPECT_EQ(bytes.substr(512 + 1024, 8), "000.json");
  EXPECT_EQ(bytes.size() % 512, 0u);
}

TEST(TarWriter, SameSamplesGiveSameBytes) {
  const ScratchDirectory scratch;
  for (const char* name : {"a.tar", "b.tar"}) {
    TarWriter writer(scratch / name);
    for (int i = 0; i < 20; ++i) writer.write(sample(fmt::format("{:05d}", i)));
    writer.commit();
  }
  EXPECT_EQ(read_file(scratch / "a.tar"), read_file(scratch / "b.tar"));
}

TEST(TarWriter, ReadsBackEveryName) {
  const ScratchDirectory scratch;
  const std::vector<std::string> keys = {"000",
                                         "a/b",
                                         std::string(90, 'k'),
                                         std::string(80, 'd') + "/" + std::string(80, 'k'),
                                         std::string(300, 'n'),
                                         "ünï/日本",
                                         "cafe\u0301",  // taken apart, as macOS has it, and composed
                                         "caf\u00e9",
                                         "\u212b",
                                         "x" + std::string(400, 'y') + "/é"};
  TarWriter writer(scratch / "a.tar");
  for (const std::string& key : keys) writer.write(sample(key));
  writer.commit();
  TarReader reader((scratch / "a.tar").string());
  for (const std::string& key : keys) {
    const auto back = reader.next();
    ASSERT_TRUE(back) << key;
    EXPECT_EQ(back->key, key);
    EXPECT_EQ(back->fields,
              (decltype(TarSample::fields){{"jpg", std::string(1000, 'j')}, {"json", "{}"}, {"txt", "words"}}));
  }
  EXPECT_FALSE(reader.next());
  EXPECT_FALSE(reader.error());
}

TEST(TarWriter, NothingAppearsWithoutCommit) {
  const ScratchDirectory scratch;
  {
    TarWriter writer(scratch / "a.tar");
    writer.write(sample("000"));
  }
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

TEST(TarWriter, AnEmptyArchiveIsValid) {
  const ScratchDirectory scratch;
  TarWriter(scratch / "a.tar").commit();
  TarReader reader((scratch / "a.tar").string());
  EXPECT_FALSE(reader.next());
  EXPECT_FALSE(reader.error());
}

TEST(TarWriter, AWriteThatFailsIsNamed) {
  const ScratchDirectory scratch;
  const Error error = error_of([&] {
    const FileSizeLimit limit(50'000);
    TarWriter writer(scratch / "a.tar");
    for (int i = 0; i < 100; ++i) writer.write(sample(fmt::format("{}", i)));
    writer.commit();
  });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_NE(error.hint().find("ulimit -f"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace millrace::test
