#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

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
  EXPECT_THAT(text, MatchesRegex("[0-9]{2}:[0-9]{2}:[0-9]{2} info trainer/3 start 1\n"
                                 "[0-9]{2}:[0-9]{2}:[0-9]{2} warning trainer/3 step 42 loss 0.5\n"));
}

TEST_F(Log, WhatStrangersNamedCannotDriveATerminal) {
  log::init({.console = false, .file = (dir_ / "log").string()});
  log::warning("{}: no image",
               "a\x1b[2J\r\b"
               "b\x7f/ö\t1");
  EXPECT_THAT(read_file(dir_ / "log"), testing::EndsWith(" warning a\\x1b[2J\\x0d\\x08b\\x7f/ö\t1: no image\n"));
}

TEST_F(Log, TheConsoleLeavesOutWhatOnlyTheFileNeeds) {
  testing::internal::CaptureStderr();
  log::init({.file = (dir_ / "log").string()});
  log::debug("detail");
  log::error("broken");
  log::progress("never on a file");
  log::flush();
  const std::string console = testing::internal::GetCapturedStderr();
  EXPECT_THAT(console, HasSubstr(" error broken\n"));
  EXPECT_THAT(console, Not(HasSubstr("detail")));
  EXPECT_THAT(read_file(dir_ / "log"), HasSubstr(" debug detail\n"));
  EXPECT_THAT(console, Not(HasSubstr("never")));
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
    EXPECT_EQ(line.size(), std::string("00:00:00 info abcdefghij").size());
  EXPECT_EQ(count, 400);
}

TEST_F(Log, AnUnwritableFileIsAnError) {
  EXPECT_THROW(log::init({.file = "/no/such/directory/log"}), Error);
}

}  // namespace
}  // namespace millrace
