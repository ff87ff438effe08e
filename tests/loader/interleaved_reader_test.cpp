#include <gtest/gtest.h>

#include <map>

#include "millrace/loader/interleaved_reader.h"

namespace millrace {
namespace {

using Turns = std::vector<std::pair<std::uint32_t, int>>;

Turns take(TurnOrder& order, int parcels) {
  Turns turns;
  for (int i = 0; i < parcels; ++i) {
    const auto turn = order.next();
    turns.emplace_back(turn.stripe, turn.samples);
  }
  return turns;
}

TEST(TurnOrder, WhatIsNeededFirstComesFirst) {
  TurnOrder order({1, 4, 7}, {.samples_per_step = 2, .steps = 2});
  // Steps 0 and 1 need these; stripes 1 and 7 begin with a parcel of one step, so they are next in step 1, and so on.
  EXPECT_EQ(take(order, 3), (Turns{{1, 2}, {4, 4}, {7, 2}}));
  EXPECT_EQ(take(order, 2), (Turns{{1, 4}, {7, 4}}));
  EXPECT_EQ(take(order, 1), (Turns{{4, 4}}));
  EXPECT_EQ(take(order, 3), (Turns{{1, 4}, {7, 4}, {4, 4}}));
}

// After the first parcels every step needs the same number of new ones, or one more.
TEST(TurnOrder, StepsNeedEvenlyManyParcels) {
  constexpr int stripes = 20, steps = 8;
  std::vector<std::uint32_t> all(stripes);
  for (std::uint32_t stripe = 0; stripe < stripes; ++stripe) all[stripe] = stripe;
  TurnOrder order(all, {.samples_per_step = 3, .steps = steps});
  std::map<std::uint32_t, int> made;  // steps' worth
  std::map<int, int> parcels_of_step;
  for (int i = 0; i < 40 * stripes; ++i) {
    const auto turn = order.next();
    ++parcels_of_step[made[turn.stripe]];
    made[turn.stripe] += turn.samples / 3;
  }
  for (int step = 1; step < 200; ++step) {
    EXPECT_GE(parcels_of_step[step], stripes / steps) << step;
    EXPECT_LE(parcels_of_step[step], stripes / steps + 1) << step;
  }
}

TEST(TurnOrder, AStripeThatEndedIsLeftOut) {
  TurnOrder order({0, 1}, {.samples_per_step = 3});
  EXPECT_EQ(take(order, 1), (Turns{{0, 3}}));
  order.remove(0);
  EXPECT_EQ(take(order, 3), (Turns{{1, 3}, {1, 3}, {1, 3}}));
  order.remove(1);
  EXPECT_TRUE(order.empty());
}

}  // namespace
}  // namespace millrace
