#include "millrace/core/append_file.h"

#include <gmock/gmock.h>

#include "core/file_size_limit.h"
#include "core/temp_dir.h"
#include "error_of.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"

namespace millrace::test {
namespace {

TEST(AppendFile, AddsToWhatIsThere) {
  const TempDir folder;
  const auto path = folder.write("lines", "a\n");
  {
    AppendFile file(path);
    file.add("b\n");
    EXPECT_EQ(read_file(path), "a\n");
    file.flush();
    EXPECT_EQ(read_file(path), "a\nb\n");
    file.add("c\n");
  }
  EXPECT_EQ(read_file(path), "a\nb\nc\n");
}

TEST(AppendFile, WhatCannotBeWrittenWaits) {
  const TempDir folder;
  const auto path = folder.path() / "lines";
  AppendFile file(path);
  {
    const FileSizeLimit limit(6);
    for (const char* line : {"1234\n", "5678\n", "9\n"}) {
      file.add(line);
      file.flush();
    }
    EXPECT_EQ(read_file(path), "1234\n5");
    EXPECT_EQ(file.waiting(), 6u);
  }
  file.flush();
  EXPECT_EQ(file.waiting(), 0u);
  EXPECT_EQ(read_file(path), "1234\n5678\n9\n");
}

TEST(AppendFile, NoMoreThan64MiBWait) {
  const TempDir folder;
  AppendFile file(folder / "lines");
  const FileSizeLimit limit(0);
  for (int i = 0; i < 80; ++i) {
    file.add(std::string(1 << 20, 'x'));
    file.flush();
  }
  EXPECT_EQ(file.waiting(), 64u << 20);
  file.forget();
}

TEST(AppendFile, SyncTellsWhetherAllIsThere) {
  const TempDir folder;
  AppendFile file(folder / "lines");
  file.add("1234\n");
  file.add("5678\n");
  {
    const FileSizeLimit limit(6);
    EXPECT_FALSE(file.sync());
  }
  EXPECT_TRUE(file.sync());
  EXPECT_EQ(read_file(folder / "lines"), "1234\n5678\n");
  EXPECT_TRUE(AppendFile("/dev/null").sync()) << "which cannot be synced";
}

TEST(AppendFile, SyncTellsOnceOfWhatWasDropped) {
  const TempDir folder;
  AppendFile file(folder / "lines");
  const std::string too_large((64 << 20) + 1, 'x');
  for (int time = 0; time < 2; ++time) {
    file.add(too_large);
    EXPECT_FALSE(file.sync());
    EXPECT_TRUE(file.sync());
  }
}

TEST(AppendFile, ALinkIsNamedAndNotFollowed) {
  const TempDir folder;
  const auto theirs = folder.write("theirs", "a\n");
  fs::create_symlink(theirs, folder / "lines");
  fs::create_symlink(folder / "nowhere", folder / "made");
  for (const char* name : {"lines", "made"}) {
    const Error error = error_of([&] { AppendFile file(folder / name); });
    EXPECT_EQ(error.exit(), Exit::io);
    EXPECT_THAT(error.what(), testing::HasSubstr(std::string(name) + " is a symbolic link to "));
    EXPECT_THAT(error.hint(), testing::HasSubstr("remove the link"));
  }
  EXPECT_EQ(read_file(theirs), "a\n");
  EXPECT_FALSE(fs::exists(folder / "nowhere"));
}

// A run's folder may be on another disk.
TEST(AppendFile, TheFolderMayBeALink) {
  const TempDir folder;
  fs::create_directory(folder / "elsewhere");
  fs::create_directory_symlink(folder / "elsewhere", folder / "run");
  AppendFile(folder / "run/lines").add("a\n");
  EXPECT_EQ(read_file(folder / "elsewhere/lines"), "a\n");
}

TEST(AppendFile, AFileThatCannotBeMadeIsNamed) {
  try {
    AppendFile("/nowhere/lines");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::io);
    EXPECT_THAT(error.what(), testing::HasSubstr("/nowhere/lines"));
  }
}

}  // namespace
}  // namespace millrace::test
