#include "millrace/io/gunzip.h"

#include "support.h"

namespace millrace::test {
namespace {

std::string long_text() {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(i) + (i % 7 ? "\n" : "\r\n");
  return text;
}

fs::path pack(const fs::path& file) {
  EXPECT_EQ(std::system(("gzip -k " + file.string()).c_str()), 0);
  return file.string() + ".gz";
}

TEST(Gunzip, GivesTheTextPackedOrNot) {
  const ScratchDirectory scratch;
  const fs::path plain = scratch.write("a.txt", long_text());
  EXPECT_TRUE(gunzip_file(plain) == long_text());  // a difference would take minutes to print
  EXPECT_TRUE(gunzip_file(pack(plain)) == long_text());
  EXPECT_EQ(gunzip_file(scratch.write("mark.txt", "\xEF\xBB\xBFx")), "x");
  EXPECT_EQ(gunzip_file(scratch.write("empty", "")), "");
}

// As Windows' editors and shells write it: each other byte would be taken for a NUL.
TEST(Gunzip, Utf16IsRefused) {
  const ScratchDirectory scratch;
  for (const std::string& text : {std::string("\xFF\xFE\x61\0", 4), std::string("\xFE\xFF\0\x61", 4)}) {
    const Error error = error_of([&] { gunzip_file(scratch.write("wide.txt", text)); });
    EXPECT_EQ(error.exit(), Exit::usage);
    EXPECT_NE(std::string_view(error.what()).find("wide.txt: UTF-16"), std::string_view::npos) << error.what();
  }
  for (const std::string text : {"\xFF", "\xEF", "\xEF\xBB", "x"})
    EXPECT_EQ(gunzip_file(scratch.write("short.txt", text)), text);
}

TEST(Gunzip, WhatCannotBeReadIsAnErrorThatNamesTheFile) {
  const ScratchDirectory scratch;
  const std::string whole = read_file(pack(scratch.write("a.txt", long_text())));
  for (const fs::path& path : {scratch / "none.gz", scratch.write("begun.gz", whole.substr(0, 1000)),
                               scratch.write("cut.gz", whole.substr(0, whole.size() - 1000))}) {
    const Error error = error_of([&] { gunzip_file(path); });
    EXPECT_EQ(error.exit(), Exit::io);
    EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace millrace::test
