#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "step_guard.h"

namespace millrace {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
using Verdict = StepGuard::Verdict;

StepGuard guard_with(int max_skips) {
  GuardConfig config;
  config.max_skips = max_skips;
  return StepGuard(config);
}

TEST(StepGuard, OnlyFiniteStepsUpdate) {
  auto guard = guard_with(100);
  EXPECT_EQ(guard.judge(1, 2), Verdict::update);
  EXPECT_EQ(guard.judge(0, 0), Verdict::update);
  for (const double bad : {nan, -nan, inf, -inf}) {
    EXPECT_EQ(guard.judge(bad, 1), Verdict::skip) << bad;
    EXPECT_EQ(guard.judge(1, bad), Verdict::skip) << bad;
  }
}

TEST(StepGuard, StopsAtOneSkipInARowMoreThanAllowed) {
  for (const int allowed : {0, 1, 3}) {
    auto guard = guard_with(allowed);
    for (int round = 0; round < 3; ++round) {
      for (int i = 1; i <= allowed; ++i) {
        EXPECT_EQ(guard.judge(nan, 1), Verdict::skip);
        EXPECT_EQ(guard.skips_in_a_row(), i);
      }
      EXPECT_EQ(guard.judge(1, 1), Verdict::update);
      EXPECT_EQ(guard.skips_in_a_row(), 0);
    }
    for (int i = 0; i < allowed; ++i) guard.judge(nan, 1);
    EXPECT_EQ(guard.judge(nan, 1), Verdict::stop) << allowed;
    EXPECT_EQ(guard.skips_in_a_row(), allowed + 1);
  }
}

TEST(StepGuard, StopsAtOnceWhenTheUserWantsNoSkips) {
  GuardConfig config;
  config.non_finite = GuardConfig::NonFinite::stop;
  StepGuard guard(config);
  EXPECT_EQ(guard.judge(1, 1), Verdict::update);
  EXPECT_EQ(guard.judge(1, inf), Verdict::stop);
}

// 1.1 and 0.9 in turn: mean 1, standard deviation 0.1.
double swinging(int step) {
  return step % 2 ? 1.1 : 0.9;
}

SpikeGuard settled(double sigma) {
  SpikeGuard guard(sigma);
  for (int step = 0; step < 1000; ++step) EXPECT_FALSE(guard.look_at(swinging(step))) << step;
  return guard;
}

TEST(SpikeGuard, ASpikeIsSoManyStandardDeviationsAboveTheMean) {
  for (const auto& [sigma, below, above] : {std::array{6.0, 1.55, 1.65}, std::array{3.0, 1.26, 1.34}}) {
    EXPECT_FALSE(settled(sigma).look_at(below)) << sigma;
    const auto spike = settled(sigma).look_at(above);
    ASSERT_TRUE(spike) << sigma;
    EXPECT_NEAR(spike->mean, 1, 0.01);
    EXPECT_NEAR(spike->deviations, (above - 1) / 0.1, 0.1);
  }
}

TEST(SpikeGuard, AFallIsNoSpike) {
  EXPECT_FALSE(settled(6).look_at(0));
  EXPECT_FALSE(settled(6).look_at(-100));
}

TEST(SpikeGuard, JudgesFromAHundredStepsOn) {
  SpikeGuard guard(6);
  for (int step = 0; step < 99; ++step) guard.look_at(swinging(step));
  EXPECT_FALSE(SpikeGuard(guard).look_at(1000)) << "step 100";
  guard.look_at(1);
  EXPECT_TRUE(guard.look_at(1000)) << "step 101";
}

TEST(SpikeGuard, FollowsANewLevel) {
  auto guard = settled(6);
  EXPECT_TRUE(guard.look_at(3));
  for (int step = 0; step < 500; ++step) guard.look_at(3 * swinging(step));
  EXPECT_FALSE(guard.look_at(4));  // 3.3 standard deviations of 0.3 above 3
  EXPECT_TRUE(guard.look_at(6));
}

TEST(SpikeGuard, StaysQuietWhereALossIsAsNoisyAsEver) {
  std::mt19937 random(1);
  std::normal_distribution<double> noise(0.5, 0.1);
  SpikeGuard guard(6);
  for (int step = 0; step < 20000; ++step) EXPECT_FALSE(guard.look_at(noise(random))) << step;
}

TEST(StepGuard, TellsASpikeAndUpdatesAllTheSame) {
  auto guard = guard_with(100);
  for (int step = 0; step < 200; ++step) {
    guard.judge(swinging(step), 1);
    if (step % 10 == 5) guard.judge(nan, 1);  // what is skipped leaves no trace in mean and deviation
    EXPECT_FALSE(guard.spike()) << step;
  }
  EXPECT_EQ(guard.judge(2, 1), Verdict::update);
  ASSERT_TRUE(guard.spike());
  EXPECT_NEAR(guard.spike()->deviations, 10, 0.5);
  guard.judge(nan, 1);
  EXPECT_FALSE(guard.spike()) << "of the step judged last";
}

}  // namespace
}  // namespace millrace
