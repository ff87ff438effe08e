#include <gtest/gtest.h>

#include "millrace/checkpoint/cadence.h"

namespace millrace {
namespace {

const Duration seconds_10 = Duration::seconds(10), samples_20{20, Duration::Unit::samples};

RunPoint at_step(std::int64_t step) {
  return {.step = step, .samples = 8 * step, .seconds = 0.7 * static_cast<double>(step)};
}

// The steps up to 30 in which `every` is due, for a process that begins at step `first`.
std::vector<std::int64_t> due(const Duration& every, std::int64_t first = 0) {
  std::vector<std::int64_t> steps;
  for (auto step = first + 1; step <= 30; ++step)
    if (crossed(every, at_step(step - 1), at_step(step))) steps.push_back(step);
  return steps;
}

using Steps = std::vector<std::int64_t>;

TEST(Crossed, StepsSamplesAndSecondsAreDueWhereAMultipleIsReachedOrPassed) {
  EXPECT_EQ(due(Duration::steps(7)), (Steps{7, 14, 21, 28}));
  EXPECT_EQ(due(samples_20), (Steps{3, 5, 8, 10, 13, 15, 18, 20, 23, 25, 28, 30}));  // 24, 40, 64, 80, ... samples
  EXPECT_EQ(due({2, Duration::Unit::samples}).size(), 30u) << "a step of 8 samples passes four of them, once";
  EXPECT_EQ(due(seconds_10), (Steps{15, 29}));  // 10.5 and 20.3 s
}

TEST(Crossed, ARestartAtAnyStepChangesNothing) {
  for (const auto& every : {Duration::steps(7), samples_20, seconds_10}) {
    const auto all = due(every);
    for (std::int64_t first = 1; first < 30; ++first) {
      Steps rest;
      for (const auto step : all)
        if (step > first) rest.push_back(step);
      EXPECT_EQ(due(every, first), rest) << to_string(every) << " from step " << first;
    }
  }
}

TEST(Crossed, APointIsNotCrossedAgain) {
  for (const auto& every : {Duration::steps(7), samples_20, seconds_10})
    for (const double n : {0.0, 7.0, 10.0, 20.0})
      EXPECT_FALSE(crossed(every, {static_cast<std::int64_t>(n), static_cast<std::int64_t>(n), n},
                           {static_cast<std::int64_t>(n), static_cast<std::int64_t>(n), n}));
}

TEST(Crossed, NothingIsDueWithoutACadence) {
  EXPECT_FALSE(crossed(std::nullopt, at_step(0), at_step(100)));
  EXPECT_FALSE(crossed(Duration::steps(0), at_step(0), at_step(100)));
}

TEST(Reached, AtTheDurationAndBeyond) {
  EXPECT_FALSE(reached(Duration::steps(5), at_step(4)));
  EXPECT_TRUE(reached(Duration::steps(5), at_step(5)));
  EXPECT_FALSE(reached({33, Duration::Unit::samples}, at_step(4)));
  EXPECT_TRUE(reached({32, Duration::Unit::samples}, at_step(4)));
  EXPECT_TRUE(reached({31, Duration::Unit::samples}, at_step(4)));
  EXPECT_FALSE(reached(Duration::seconds(3.6), at_step(5)));
  EXPECT_TRUE(reached(Duration::seconds(3.4), at_step(5)));
  EXPECT_TRUE(reached(Duration::steps(0), at_step(0)));
}

// Also where earlier batches had other sizes.
TEST(Reached, TheLastStepIsKnownBefore) {
  EXPECT_EQ(last_step(Duration::steps(7), at_step(3), 8), 7);
  EXPECT_EQ(last_step({20, Duration::Unit::samples}, at_step(0), 8), 3);
  EXPECT_EQ(last_step({200, Duration::Unit::samples}, {.step = 25, .samples = 100}, 8), 38);
  EXPECT_EQ(last_step(seconds_10, at_step(3), 8), std::nullopt);
}

// A fault every 50,000 hours of a GPU: sqrt(2 cost 1.8e8 s / trainers).
TEST(AutoSaveInterval, IsYoungsWithinFiveAndTenMinutes) {
  EXPECT_DOUBLE_EQ(auto_save_interval(0, 32), 300);
  EXPECT_NEAR(auto_save_interval(0.5, 1024), 419.26, 0.01);
  EXPECT_DOUBLE_EQ(auto_save_interval(0.5, 32), 600);
  EXPECT_DOUBLE_EQ(auto_save_interval(0.1, 4096), 300);
}

TEST(AutoSaveInterval, LeavesNoMoreThanAFiftiethToSaves) {
  EXPECT_DOUBLE_EQ(auto_save_interval(20, 1), 1000);
  EXPECT_DOUBLE_EQ(auto_save_interval(90, 4096), 4500);
}

}  // namespace
}  // namespace millrace
