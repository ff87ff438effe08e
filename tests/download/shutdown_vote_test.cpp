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
    const auto limit = Clock::now() + 5s;
    while (!vote.must_stop() && Clock::now() < limit) std::this_thread::sleep_for(5ms);
    EXPECT_LT(Clock::now(), limit) << "nobody has told";
    stopped = vote.wait();
  }
  EXPECT_TRUE(stopped);
  ShutdownVote again(group);
  if (is_last) {
    EXPECT_TRUE(again.must_stop());
  }
  EXPECT_TRUE(again.wait());
}

}  // namespace
}  // namespace millrace::test
