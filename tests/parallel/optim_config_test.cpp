#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "millrace/core/error.h"
#include "millrace/parallel/optim_config.h"

namespace millrace {
namespace {

OptimConfig config(Schedule schedule, Duration warmup) {
  OptimConfig config;
  config.lr = 0.1;
  config.schedule = schedule;
  config.warmup = warmup;
  return config;
}

TEST(LearningRate, WarmsUpAndStays) {
  const auto schedule = plan_lr_schedule(config(Schedule::constant, Duration::steps(4)), Duration::seconds(60), 8);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1), 0.025);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 4), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1000), 0.1);
  const auto at_once = plan_lr_schedule(config(Schedule::constant, Duration::steps(0)), Duration::steps(10), 8);
  EXPECT_DOUBLE_EQ(learning_rate(at_once, 1), 0.1);
}

TEST(LearningRate, FallsToZeroAtTheEndOfTheRun) {
  const auto linear = plan_lr_schedule(config(Schedule::linear, Duration::steps(2)), Duration::steps(10), 8);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 2), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 4), 0.1 * 0.75);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 10), 0);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 11), 0);
  const auto cosine = plan_lr_schedule(config(Schedule::cosine, Duration::steps(2)), Duration::steps(10), 8);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 6), 0.05);
  EXPECT_NEAR(learning_rate(cosine, 4), 0.1 * 0.8535533905932737, 1e-15);  // (1 + cos(pi / 4)) / 2
  EXPECT_NEAR(learning_rate(cosine, 10), 0, 1e-15);
}

// All along the way: the formula with the C library's cosine, to a few of 53 bits.
TEST(LearningRate, CosineIsTheCosine) {
  const auto cosine = plan_lr_schedule(config(Schedule::cosine, Duration::steps(0)), Duration::steps(997), 8);
  for (int n = 1; n <= 1000; ++n) {
    const double expected = 0.1 * (1 + std::cos(std::numbers::pi * std::min(1.0, n / 997.0))) / 2;
    EXPECT_NEAR(learning_rate(cosine, n), expected, 0.1 * 0x1p-50) << n;
  }
  EXPECT_EQ(learning_rate(cosine, 997), 0);
}

TEST(LearningRate, DurationsInSamplesAreTurnedIntoSteps) {
  const Duration samples{80, Duration::Unit::samples}, warmup{16, Duration::Unit::samples};
  const auto linear = plan_lr_schedule(config(Schedule::linear, warmup), samples, 8);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 1), 0.05);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 6), 0.05);
}

TEST(LearningRate, AScheduleOverTimeIsAnErrorOfUse) {
  for (const auto schedule : {Schedule::linear, Schedule::cosine}) {
    try {
      plan_lr_schedule(config(schedule, Duration::steps(0)), Duration::seconds(60), 8);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::usage);
    }
  }
  EXPECT_THROW(plan_lr_schedule(config(Schedule::constant, Duration::seconds(3)), Duration::steps(9), 8), Error);
}

TEST(Ema, DecayWarmsUp) {
  const EmaConfig warm{.enabled = true, .decay = 0.9, .warmup = true};
  EXPECT_DOUBLE_EQ(ema_decay(warm, 1), 0);
  EXPECT_DOUBLE_EQ(ema_decay(warm, 2), 2.0 / 11);
  EXPECT_DOUBLE_EQ(ema_decay(warm, 10), 10.0 / 19);
  EXPECT_DOUBLE_EQ(ema_decay(warm, 1000), 0.9);
  EXPECT_DOUBLE_EQ(ema_decay({.enabled = true, .decay = 0.9, .warmup = false}, 1), 0.9);
}

TEST(Clip, ScalesLongGradientsOnly) {
  EXPECT_DOUBLE_EQ(clip_factor(1.0, 0.5), 1.0);
  EXPECT_DOUBLE_EQ(clip_factor(1.0, 4.0), 1.0 / (4.0 + 1e-6));
  EXPECT_DOUBLE_EQ(clip_factor(std::nullopt, 4.0), 1.0);
}

}  // namespace
}  // namespace millrace
