#include "millrace/core/stacks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/temp_dir.h"
#include "millrace/core/files.h"
#include "millrace/core/stopwatch.h"

// Not in an anonymous namespace, which would leave them without names outside.
namespace millrace::stacks_test {

std::atomic<bool> spins{false}, enough{false};

[[gnu::noinline]] void spin_in_a_named_function() {
  for (spins = true, spins.notify_one(); !enough;) {
  }
}

[[gnu::noinline]] void wait_in_a_named_function(int fd) {
  char byte;
  [[maybe_unused]] const auto size = ::read(fd, &byte, 1);
}

}  // namespace millrace::stacks_test

namespace millrace {
namespace {

using namespace stacks_test;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Of all threads of this process, whatever else the machine does.
double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Threads that wait in a read until the end of the block.
class WaitingThreads {
 public:
  explicit WaitingThreads(int number) {
    if (::pipe2(ends_, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    for (int i = 0; i < number; ++i) threads_.emplace_back([fd = ends_[0]] { wait_in_a_named_function(fd); });
  }
  ~WaitingThreads() {
    ::close(ends_[1]);
    threads_.clear();
    ::close(ends_[0]);
  }

 private:
  int ends_[2];
  std::vector<std::jthread> threads_;
};

#ifdef __SANITIZE_THREAD__
constexpr const char* keeps_signals_back = "ThreadSanitizer keeps signals back, and has a thread of its own";
#else
constexpr const char* keeps_signals_back = nullptr;
#endif

// Asks again until all have come to their read.
std::string describe_until(const std::string& part, std::size_t times) {
  std::string text;
  for (const Stopwatch since; count(text, part) < times && since.seconds() < 100;) text = stacks::describe_threads();
  return text;
}

TEST(Stacks, AThreadThatWaitsInAReadIsFoundThereAndReadsOn) {
  if (keeps_signals_back) GTEST_SKIP() << keeps_signals_back;
  const WaitingThreads waiting(1);
  const auto text = describe_until("wait_in_a_named_function", 1);
  EXPECT_EQ(count(text, "millrace::stacks_test::wait_in_a_named_function(int)+0x"), 1u) << text;
  const auto again = stacks::describe_threads();
  EXPECT_EQ(count(again, "wait_in_a_named_function"), 1u) << again;
  EXPECT_EQ(count(describe_until(", state S", 1), ", state S"), 1u) << "the pipe's reader, at rest";
}

TEST(Stacks, AHundredThreadsTakeLessThanTwoSeconds) {
  if (keeps_signals_back) GTEST_SKIP() << keeps_signals_back;
  const WaitingThreads waiting(100);
  describe_until("wait_in_a_named_function", 100);
  std::string text = "no answer yet";
  double seconds = 0;
  for (int time = 0; time < 3 && (seconds >= 10 || count(text, "no answer") > 0); ++time) {  // one may meet a pause
    const Stopwatch since;
    const double before = processor_seconds();
    text = stacks::describe_threads();
    EXPECT_LT(processor_seconds() - before, 2);
    seconds = since.seconds();
  }
  EXPECT_LT(seconds, 10) << "a nap for each thread";
  EXPECT_EQ(count(text, "wait_in_a_named_function"), 100u);
  EXPECT_EQ(count(text, "no answer"), 0u) << text;
}

TEST(Stacks, AThreadThatBlocksSignalsIsNamedWithoutAStack) {
  if (keeps_signals_back) GTEST_SKIP() << keeps_signals_back;
  std::atomic<bool> ready{false}, end{false};
  std::jthread deaf([&] {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    ::pthread_setname_np(::pthread_self(), "deaf");
    ready = true;
    ready.notify_one();
    end.wait(false);
  });
  ready.wait(false);
  const auto text = stacks::describe_threads();
  end = true;
  end.notify_one();
  const auto at = text.find(" deaf, state");
  ASSERT_NE(at, text.npos) << text;
  EXPECT_EQ(text.find("blocks signals"), text.find('\n', at) + 3) << text;
}

// Who has called vfork sleeps so until the child is gone, which waits here until the pipe is closed.
TEST(Stacks, AThreadInUninterruptibleSleepIsNamedWithItsState) {
  if (keeps_signals_back) GTEST_SKIP() << keeps_signals_back;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  std::jthread sleeping([&] {
    if (const pid_t child = ::vfork(); child == 0) {
      ::close(ends[1]);
      char byte;
      [[maybe_unused]] const auto size = ::read(ends[0], &byte, 1);
      ::_exit(0);
    } else {
      ::waitpid(child, nullptr, 0);
    }
  });
  const auto text = describe_until(", state D", 1);
  const Stopwatch since;
  const double before = processor_seconds();
  stacks::describe_threads();
  EXPECT_LT(processor_seconds() - before, 2);
  EXPECT_LT(since.seconds(), 100) << "it waits a second for an answer";
  ::close(ends[1]);
  sleeping.join();
  ::close(ends[0]);
  const auto at = text.find(", state D");
  ASSERT_NE(at, text.npos) << text;
  EXPECT_EQ(text.find("no answer"), text.find('\n', at) + 3) << text;
}

#ifndef __SANITIZE_THREAD__  // which keeps signals back until the thread calls the system
TEST(Stacks, TheFileTellsInWhichFunctionAThreadSpins) {
  test::TempDir folder;
  std::jthread spinning(spin_in_a_named_function);
  spins.wait(false);
  stacks::start_writing();
  EXPECT_FALSE(stacks::written()) << "nobody has said where to";
  write_file_atomically(folder / "stacks.txt", std::string(1 << 20, 'x'));  // of an earlier start
  stacks::write_to(folder / "stacks.txt", "rank 3 on n2");
  stacks::start_writing();
  for (const Stopwatch since; !stacks::written() && since.seconds() < 100;) std::this_thread::yield();
  enough = true;
  const auto text = read_file(folder / "stacks.txt");
  EXPECT_TRUE(text.starts_with("rank 3 on n2, process ")) << text;
  EXPECT_LT(text.size(), std::size_t{1} << 20);
  EXPECT_NE(text.find("millrace::stacks_test::spin_in_a_named_function()"), text.npos) << text;

  spinning.join();
  for (const Stopwatch since; since.seconds() < 100;) {  // the first time may not be quite over
    stacks::start_writing();
    while (!stacks::written() && since.seconds() < 100) std::this_thread::yield();
    if (read_file(folder / "stacks.txt") != text) break;
  }
  EXPECT_EQ(count(read_file(folder / "stacks.txt"), "spin_in_a_named_function"), 0u) << "of the second time";

  const auto theirs = folder.write("theirs", "precious");
  fs::remove(folder / "stacks.txt");
  fs::create_symlink(theirs, folder / "stacks.txt");
  while (stacks::written()) stacks::start_writing();  // the time before may not be quite over
  for (const Stopwatch since; !stacks::written() && since.seconds() < 100;) std::this_thread::yield();
  EXPECT_EQ(read_file(theirs), "precious");
}
#endif

}  // namespace
}  // namespace millrace
