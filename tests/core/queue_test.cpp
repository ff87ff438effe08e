#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "millrace/core/queue.h"

namespace millrace {
namespace {

TEST(BoundedQueue, KeepsOrderAndDrainsAfterClose) {
  BoundedQueue<int> queue(3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(queue.push(i));
  queue.close();
  EXPECT_FALSE(queue.push(9));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(queue.pop(), i);
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(BoundedQueue, HoldsTheWriterBackAtItsBound) {
  BoundedQueue<int> queue(2);
  std::jthread writer([&] {
    for (int i = 0; i < 1000; ++i) queue.push(i);
    queue.close();
  });
  int next = 0;
  while (const auto value = queue.pop()) {
    EXPECT_LE(queue.size(), 2u);
    EXPECT_EQ(*value, next++);
  }
  EXPECT_EQ(next, 1000);
}

TEST(BoundedQueue, EachItemReachesExactlyOneOfManyReaders) {
  BoundedQueue<int> queue(4);
  std::vector<long> sums(2);
  {
    std::vector<std::jthread> readers;
    for (long& sum : sums) {
      readers.emplace_back([&queue, &sum] {
        while (const auto value = queue.pop()) sum += *value;
      });
    }
    for (int i = 1; i <= 10'000; ++i) queue.push(i);
    queue.close();
  }
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), 0L), 50'005'000);
}

TEST(BoundedQueue, CloseWakesAWaitingWriterAndAWaitingReader) {
  BoundedQueue<int> full(1), empty(1);
  full.push(1);
  std::jthread writer([&] { EXPECT_FALSE(full.push(2)); });
  std::jthread reader([&] { EXPECT_EQ(empty.pop(), std::nullopt); });
  full.close();
  empty.close();
}

TEST(BoundedQueue, AReaderCanGiveUp) {
  BoundedQueue<int> queue(1);
  EXPECT_EQ(queue.pop_for(std::chrono::milliseconds(1)), std::nullopt);
  queue.push(7);
  EXPECT_EQ(queue.pop_for(std::chrono::milliseconds(1)), 7);
  queue.close();
  EXPECT_EQ(queue.pop_for(std::chrono::hours(1)), std::nullopt);
}

TEST(BoundedQueue, CarriesMoveOnlyValues) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_EQ(queue.pop_for(std::chrono::milliseconds(0)), std::nullopt);
  queue.push(std::make_unique<int>(5));
  EXPECT_EQ(**queue.pop(), 5);
}

}  // namespace
}  // namespace millrace
