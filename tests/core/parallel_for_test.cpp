#include "millrace/core/parallel_for.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <set>
#include <stdexcept>
#include <string>

namespace millrace {
namespace {

TEST(ParallelFor, CallsForEachOnce) {
  for (const std::size_t count : {0, 1, 15, 31, 32, 1000}) {
    std::vector<std::atomic<int>> calls(count);
    parallel_for(count, [&](std::size_t i) { ++calls[i]; });
    EXPECT_TRUE(std::ranges::all_of(calls, [](const auto& number) { return number == 1; })) << count;
  }
}

TEST(ParallelFor, WaitsForManyAtOnce) {
  std::mutex mutex;
  std::condition_variable came;
  std::set<std::thread::id> threads;
  parallel_for(64, [&](std::size_t) {
    std::unique_lock turn(mutex);
    threads.insert(std::this_thread::get_id());
    came.notify_all();
    EXPECT_TRUE(came.wait_for(turn, std::chrono::seconds(30), [&] { return threads.size() == 4; }));
  });
}

// As a loop would, which never gets to the later ones.
TEST(ParallelFor, ThrowsWhatTheFirstThrew) {
  for (int time = 0; time < 50; ++time) {
    try {
      parallel_for(200, [&](std::size_t i) {
        if (i == 3) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        if (i == 3 || i == 20) throw std::runtime_error(std::to_string(i));
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "3");
    }
  }
}

}  // namespace
}  // namespace millrace
