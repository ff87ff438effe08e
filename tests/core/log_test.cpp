#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <thread>

#include "core/temp_dir.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/phase.h"
#include "millrace/core/stopwatch.h"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

class Log : public testing::Test {
 protected:
  void TearDown() override {
    log::set_step(0);
    log::init({});
  }
  test::TempDir dir_;
};

TEST_F(Log, LinesCarryTimeLevelRoleRankAndStep) {
  log::init({.role = "trainer", .rank = 3, .console = false, .file = (dir_ / "log").string()});
  log::info("start {}", 1);
  log::set_step(42);
  log::warning("loss {:.1f}", 0.5);
  const std::string text = read_file(dir_ / "log");  // every line is flushed
  const std::string utc = "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z";
  EXPECT_THAT(text, MatchesRegex(utc + " info trainer/3 start 1\n" + utc + " warning trainer/3 step 42 loss 0.5\n"));
}

TEST_F(Log, WhatStrangersNamedCannotDriveATerminal) {
  log::init({.console = false, .file = (dir_ / "log").string()});
  log::warning("{}: no image",
               "a\x1b[2J\r\b"
               "b\x7f/ö\t1");
  EXPECT_THAT(read_file(dir_ / "log"), testing::EndsWith(" warning a\\x1b[2J\\x0d\\x08b\\x7f/ö\t1: no image\n"));
}

// A file name with a line end, and behind that what looks like a line of ours.
TEST_F(Log, NobodyElseBeginsALine) {
  testing::internal::CaptureStderr();
  log::init({.file = (dir_ / "log").string()});
  log::warning("{}: no image", "a\n2026-11-24T20:13:23Z error trainer/0 forged\n   started in 3 s");
  log::flush();
  const std::string console = testing::internal::GetCapturedStderr(), file = read_file(dir_ / "log");
  EXPECT_THAT(file, testing::EndsWith(
                        " warning a\\n2026-11-24T20:13:23Z error trainer/0 forged\\n   started in 3 s: no image\n"));
  EXPECT_EQ(std::count(file.begin(), file.end(), '\n'), 1);
  EXPECT_THAT(console, testing::EndsWith(
                           " warning a\n  2026-11-24T20:13:23Z error trainer/0 forged\n   started in 3 s: no image\n"));
}

TEST_F(Log, LinesFromBeforeTheFileStandAtItsBeginning) {
  const auto path = (dir_ / "log").string();
  log::init({.console = false, .awaits_file = true});
  log::info("resuming");
  log::debug("a detail");
  log::init({.role = "trainer", .rank = 2, .console = false, .file = path});
  log::info("started");
  log::init({.role = "trainer", .rank = 2, .console = false, .file = path + ".2"});
  EXPECT_THAT(read_file(path), MatchesRegex("[^\n]*Z info trainer/2 resuming\n[^\n]*Z debug trainer/2 a detail\n"
                                            "[^\n]*Z info trainer/2 started\n"));
  EXPECT_EQ(read_file(path + ".2"), "");
}

TEST_F(Log, ALinkIsNotWrittenTo) {
  const auto theirs = dir_.write("theirs", "precious");
  std::filesystem::create_symlink(theirs, dir_ / "log");
  EXPECT_THROW(log::init({.console = false, .file = (dir_ / "log").string()}), Error);
  EXPECT_EQ(read_file(theirs), "precious");
}

TEST_F(Log, TheConsoleLeavesOutWhatOnlyTheFileNeeds) {
  testing::internal::CaptureStderr();
  log::init({.file = (dir_ / "log").string()});
  log::debug("detail");
  log::error("broken");
  log::progress("never on a file");
  log::flush();
  const std::string console = testing::internal::GetCapturedStderr();
  EXPECT_THAT(console, MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z error broken\n"));
  EXPECT_THAT(console, Not(HasSubstr("detail")));
  EXPECT_THAT(read_file(dir_ / "log"), HasSubstr(" debug detail\n"));
  EXPECT_THAT(console, Not(HasSubstr("never")));
}

// Files of this process cannot grow beyond it, as on a full disk.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(Log, GoesOnWhenThereIsRoomAgain) {
  std::signal(SIGXFSZ, SIG_IGN);
  log::init({.console = false, .file = (dir_ / "log").string()});
  {
    const FileLimit full(100);
    for (int i = 0; i < 10; ++i) log::info("line {} of ten", i);
  }
  log::info("there is room");
  log::info("and more");
  const std::string text = read_file(dir_ / "log");
  EXPECT_THAT(text, HasSubstr(" info line 0 of ten\n"));
  EXPECT_THAT(text, MatchesRegex(".* info line .*\n\\([78] lines could not be written\\)\n.* info there is room\n.* "
                                 "info and more\n"));
}

// A pipe that nobody empties.
TEST_F(Log, WhoWaitsForTheFileIsCounted) {
  const auto file = dir_ / "log";
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  const int pipe = ::open(file.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(pipe, 0);
  char block[4096] = {};
  while (::write(pipe, block, sizeof block) > 0) {
  }
  log::init({.console = false, .file = file.string()});
  EXPECT_EQ(phase::log_writers, 0);
  {
    const std::jthread writer([] { log::info("a line"); });
    for (const Stopwatch since; phase::log_writers == 0 && since.seconds() < 20;) std::this_thread::yield();
    EXPECT_EQ(phase::log_writers, 1);
    while (::read(pipe, block, sizeof block) > 0) {
    }
  }
  EXPECT_EQ(phase::log_writers, 0);
  ::close(pipe);
}

TEST_F(Log, AQuietRankPrintsNothing) {
  testing::internal::CaptureStderr();
  log::init({.console = false});
  log::error("nobody hears");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(Log, LinesOfThreadsStayWhole) {
  log::init({.console = false, .file = (dir_ / "log").string()});
  {
    std::vector<std::jthread> writers;
    for (int t = 0; t < 4; ++t) {
      writers.emplace_back([] {
        for (int i = 0; i < 100; ++i) log::info("abcdefghij");
      });
    }
  }
  std::istringstream lines(read_file(dir_ / "log"));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count)
    EXPECT_EQ(line.size(), std::string("2026-11-24T00:00:00Z info abcdefghij").size());
  EXPECT_EQ(count, 400);
}

// Which is told by the sinks that were there.
TEST_F(Log, AnUnwritableFileIsAnError) {
  log::init({.console = false, .file = (dir_ / "log").string()});
  EXPECT_THROW(log::init({.file = "/no/such/directory/log"}), Error);
  log::error("it cannot be opened");
  EXPECT_THAT(read_file(dir_ / "log"), testing::EndsWith("Z error it cannot be opened\n"));
}

}  // namespace
}  // namespace millrace
