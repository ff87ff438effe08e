#include "shutdown_vote.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "millrace/core/stop.h"
#include "mpi_world.h"

namespace millrace::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST(ShutdownVote, NobodyStopsWhereNobodyIsTold) {
  for (int round = 0; round < 3; ++round) {
    ShutdownVote vote(test_world().group());
    EXPECT_FALSE(vote.must_stop());
    std::this_thread::sleep_for(10ms * test_world().group().rank());
    EXPECT_FALSE(vote.wait());
  }
}

TEST(ShutdownVote, TheFirstRankTellsForHowManyItWaits) {
  const Group group = test_world().group().duplicate();
  const bool is_last = group.rank() == group.size() - 1;
  ShutdownVote vote(group);
  char heard = 0;
  if (is_last) {  // it is through once the first has told of it
    Transfer word = group.receiver(0, 2, std::as_writable_bytes(std::span(&heard, 1)));
    word.start();
    while (!word.done()) std::this_thread::sleep_for(5ms);
    EXPECT_FALSE(vote.wait());
    return;
  }
  int told = 0;
  Transfer word = group.sender(group.size() - 1, 2, std::as_bytes(std::span(&heard, 1)));
  const auto tell = [&](int left) {
    EXPECT_GE(left, 1);
    EXPECT_LT(left, group.size());
    if (++told == 1) word.start(1);
  };
  EXPECT_FALSE(vote.wait(tell));
  if (group.rank() == 0) {
    EXPECT_GE(told, 1);
    while (!word.done()) std::this_thread::sleep_for(5ms);
  }
}

// Last: a signal is never taken back. It comes to the last rank, which has ended and waits for the others.
TEST(ShutdownVote, ASignalBehindTheEndOfAShareStopsAll) {
  const Group group = test_world().group().duplicate();
  const bool is_last = group.rank() == group.size() - 1;
  ShutdownVote vote(group);
  bool stopped = false;
  if (is_last) {
    const std::jthread later([] {
      std::this_thread::sleep_for(100ms);
      stop::request(SIGUSR1);
    });
    stopped = vote.wait();
  } else {
    const auto limit = Clock::now() + 60s;
    while (!vote.must_stop() && Clock::now() < limit) std::this_thread::sleep_for(5ms);
    EXPECT_LT(Clock::now(), limit) << "nobody has told";
    stopped = vote.wait();
  }
  EXPECT_TRUE(stopped);
  ShutdownVote again(group);
  if (is_last) {
    EXPECT_TRUE(again.must_stop());
  }
  if (group.rank() == 0) {
    while (!again.must_stop()) std::this_thread::sleep_for(5ms);
  } else if (!is_last) {
    std::this_thread::sleep_for(200ms);  // by then the first waits for this one
  }
  EXPECT_TRUE(again.wait([](int) { ADD_FAILURE() << "its share is not done: it was stopped"; }));
}

}  // namespace
}  // namespace millrace::test
