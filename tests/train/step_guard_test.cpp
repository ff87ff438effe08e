#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "step_guard.h"

namespace millrace {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
using Verdict = StepGuard::Verdict;
constexpr std::int64_t any = 9;  // step: matters for the first of a row alone

StepGuard guard_with(int max_skips) {
  GuardConfig config;
  config.max_skips = max_skips;
  return StepGuard(config, {});
}

TEST(StepGuard, OnlyFiniteStepsUpdate) {
  auto guard = guard_with(100);
  EXPECT_EQ(guard.judge(any, 1, 2), Verdict::update);
  EXPECT_EQ(guard.judge(any, 0, 0), Verdict::update);
  for (const double bad : {nan, -nan, inf, -inf}) {
    EXPECT_EQ(guard.judge(any, bad, 1), Verdict::skip) << bad;
    EXPECT_EQ(guard.judge(any, 1, bad), Verdict::skip) << bad;
  }
}

TEST(StepGuard, StopsAtOneSkipInARowMoreThanAllowed) {
  for (const int allowed : {0, 1, 3}) {
    auto guard = guard_with(allowed);
    for (int round = 0; round < 3; ++round) {
      for (int i = 1; i <= allowed; ++i) {
        EXPECT_EQ(guard.judge(any, nan, 1), Verdict::skip);
        EXPECT_EQ(guard.history().skips_in_a_row, i);
      }
      EXPECT_EQ(guard.judge(any, 1, 1), Verdict::update);
      EXPECT_EQ(guard.history().skips_in_a_row, 0);
    }
    for (int i = 0; i < allowed; ++i) guard.judge(any, nan, 1);
    EXPECT_EQ(guard.judge(any, nan, 1), Verdict::stop) << allowed;
    EXPECT_EQ(guard.history().skips_in_a_row, allowed + 1);
  }
}

TEST(StepGuard, KnowsTheFirstOfARow) {
  auto guard = guard_with(10);
  guard.judge(3, nan, 1);
  EXPECT_EQ(guard.history().first_skip, 3);
  guard.judge(4, 1, 1);
  for (const int step : {5, 9, 10}) guard.judge(step, nan, 1);  // 6 to 8 were left out
  EXPECT_EQ(guard.history().first_skip, 5);
  EXPECT_EQ(guard.history().skips_in_a_row, 3);
}

TEST(StepGuard, GoesBackWhereItWouldStopIfTheUserWantsThat) {
  GuardConfig config;
  config.max_skips = 2;
  config.on_repeat = GuardConfig::OnRepeat::rollback;
  StepGuard guard(config, {});
  EXPECT_EQ(guard.judge(any, nan, 1), Verdict::skip);
  EXPECT_EQ(guard.judge(any, nan, 1), Verdict::skip);
  EXPECT_EQ(guard.judge(any, nan, 1), Verdict::go_back);

  config.non_finite = GuardConfig::NonFinite::stop;
  StepGuard strict(config, {});
  EXPECT_EQ(strict.judge(any, nan, 1), Verdict::stop);
}

TEST(StepGuard, StopsAtOnceWhenTheUserWantsNoSkips) {
  GuardConfig config;
  config.non_finite = GuardConfig::NonFinite::stop;
  StepGuard guard(config, {});
  EXPECT_EQ(guard.judge(any, 1, 1), Verdict::update);
  EXPECT_EQ(guard.judge(any, 1, inf), Verdict::stop);
}

// 1.1 and 0.9 in turn: mean 1, standard deviation 0.1.
double swinging(int step) {
  return step % 2 ? 1.1 : 0.9;
}

// A guard that has seen a thousand of these.
StepGuard settled(std::optional<double> sigma) {
  GuardConfig config;
  config.spike_sigma = sigma;
  config.max_skips = 1000;
  StepGuard guard(config, {});
  for (int step = 0; step < 1000; ++step) EXPECT_EQ(guard.judge(any, swinging(step), 1), Verdict::update) << step;
  return guard;
}

TEST(Spikes, AreSoManyStandardDeviationsAboveTheMean) {
  for (const auto& [sigma, below, above] : {std::array{6.0, 1.55, 1.65}, std::array{3.0, 1.26, 1.34}}) {
    EXPECT_EQ(settled(sigma).judge(any, below, 1), Verdict::update) << sigma;
    auto guard = settled(sigma);
    EXPECT_EQ(guard.judge(any, above, 1), Verdict::skip) << sigma;
    EXPECT_NEAR(guard.history().mean, 1, 0.01);
    EXPECT_NEAR(guard.spike().value(), (above - 1) / 0.1, 0.1);
  }
}

TEST(Spikes, NoneAreLookedForWithoutALimit) {
  auto guard = settled(std::nullopt);
  EXPECT_EQ(guard.judge(any, 1e6, 1), Verdict::update);
  EXPECT_EQ(guard.judge(any, inf, 1), Verdict::skip);
}

TEST(Spikes, AFallIsNone) {
  EXPECT_EQ(settled(6).judge(any, 0, 1), Verdict::update);
  EXPECT_EQ(settled(6).judge(any, -100, 1), Verdict::update);
}

TEST(Spikes, AreJudgedFromAHundredJudgedStepsOn) {
  auto guard = guard_with(100);
  for (int step = 0; step < 99; ++step) {
    guard.judge(any, swinging(step), 1);
    if (step % 10 == 5) guard.judge(any, nan, 1);  // does not count
  }
  EXPECT_EQ(StepGuard(guard).judge(any, 1000, 1), Verdict::update) << "after 99";
  guard.judge(any, 1, 1);
  EXPECT_EQ(guard.judge(any, 1000, 1), Verdict::skip) << "after 100";
}

TEST(Spikes, WhatIsSkippedLeavesNoTrace) {
  auto guard = settled(6), untouched = settled(6);
  for (const double loss : {3.0, 5.0, nan, inf}) EXPECT_EQ(guard.judge(any, loss, 1), Verdict::skip);
  EXPECT_EQ(guard.history().skips_in_a_row, 4);
  guard.judge(any, 1.1, 1);
  untouched.judge(any, 1.1, 1);
  EXPECT_EQ(guard.history().mean, untouched.history().mean);
  EXPECT_EQ(guard.history().variance, untouched.history().variance);
  EXPECT_EQ(guard.history().skips_in_a_row, 0);
  EXPECT_FALSE(guard.spike()) << "of the step judged last";
}

TEST(Spikes, ALossThatGrowsSlowlyIsFollowed) {
  auto guard = settled(6);
  for (int step = 0; step < 2000; ++step)
    EXPECT_EQ(guard.judge(any, swinging(step) * (1 + step / 500.0), 1), Verdict::update) << step;
}

TEST(Spikes, ALossAsNoisyAsEverIsNone) {
  std::mt19937 random(1);
  std::normal_distribution<double> noise(0.5, 0.1);
  auto guard = guard_with(0);
  for (int step = 0; step < 20000; ++step) EXPECT_EQ(guard.judge(any, noise(random), 1), Verdict::update) << step;
}

TEST(StepGuard, GoesOnFromAHistory) {
  const auto before = settled(6);
  GuardConfig config;
  StepGuard after(config, before.history());
  EXPECT_EQ(after.judge(any, 3, 1), Verdict::skip);
  EXPECT_EQ(after.judge(any, 1, 1), Verdict::update);
}

TEST(Hangs, AreWaitedForHalfAnHourUnlessTold) {
  GuardConfig config;
  EXPECT_EQ(config.hang_seconds(), 30 * 60);
  config.hang_timeout.value = Duration::seconds(20);
  EXPECT_EQ(config.hang_seconds(), 20);
}

}  // namespace
}  // namespace millrace
