#include "millrace/core/append_file.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>

#include "core/temp_dir.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"

namespace millrace::test {
namespace {

// The size that files may have, until its end; writes beyond it fail with EFBIG.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

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
  }
  file.flush();
  EXPECT_EQ(read_file(path), "1234\n5678\n9\n");
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
