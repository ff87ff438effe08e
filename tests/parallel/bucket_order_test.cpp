#include "bucket_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "millrace/core/error.h"

namespace millrace {
namespace {

using Buckets = std::vector<int>;

TEST(BucketOrder, FromTheLastToTheFirst) {
  BucketOrder order({2, 1, 1});
  order.begin(1);
  EXPECT_EQ(order.arrived(2), Buckets{2});
  EXPECT_EQ(order.arrived(0), Buckets{});
  EXPECT_EQ(order.arrived(0), Buckets{});  // complete, but bucket 1 comes first
  EXPECT_EQ(order.arrived(1), (Buckets{1, 0}));
  EXPECT_EQ(order.rest(), Buckets{});
}

TEST(BucketOrder, WaitsForAllBackwardPasses) {
  BucketOrder order({1, 1});
  order.begin(2);
  EXPECT_EQ(order.arrived(1), Buckets{});
  EXPECT_EQ(order.arrived(0), Buckets{});
  EXPECT_EQ(order.arrived(1), Buckets{1});
  EXPECT_EQ(order.arrived(0), Buckets{0});
}

TEST(BucketOrder, WhatGotNoGradientIsReducedAtTheEnd) {
  BucketOrder order({1, 1, 1});
  order.begin(1);
  EXPECT_EQ(order.arrived(2), Buckets{2});
  EXPECT_EQ(order.arrived(0), Buckets{});
  EXPECT_EQ(order.rest(), (Buckets{1, 0}));
  EXPECT_THROW(order.arrived(1), Error);
}

// Ranks whose gradients come in different orders, and in different numbers of passes, reduce alike.
TEST(BucketOrder, DoesNotDependOnTheOrderOfArrival) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    Buckets gradients(1 + random() % 9);
    for (int& count : gradients) count = static_cast<int>(1 + random() % 4);
    Buckets expected(gradients.size());
    std::iota(expected.rbegin(), expected.rend(), 0);
    const int backwards = static_cast<int>(1 + random() % 3);
    Buckets arrivals;
    for (int b = 0; b < static_cast<int>(gradients.size()); ++b)
      arrivals.insert(arrivals.end(), static_cast<std::size_t>(gradients[b] * backwards), b);
    std::ranges::shuffle(arrivals, random);
    BucketOrder order(gradients);
    order.begin(backwards);
    Buckets reduced;
    for (const int bucket : arrivals)
      for (const int ready : order.arrived(bucket)) reduced.push_back(ready);
    EXPECT_EQ(reduced, expected) << "seed " << seed;
  }
}

}  // namespace
}  // namespace millrace
