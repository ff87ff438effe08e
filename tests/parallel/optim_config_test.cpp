#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "error_of.h"
#include "millrace/core/error.h"
#include "millrace/parallel/optim_config.h"

namespace millrace {
namespace {

constexpr std::int64_t batch = 8;

// Of a run whose batches all had that size.
double rate(const LrSchedule& schedule, std::int64_t step) {
  return learning_rate(schedule, step, step * batch);
}

OptimConfig config(Schedule schedule, Duration warmup) {
  OptimConfig config;
  config.lr = 0.1;
  config.schedule = schedule;
  config.warmup = warmup;
  return config;
}

TEST(LearningRate, WarmsUpAndStays) {
  const auto schedule = plan_lr_schedule(config(Schedule::constant, Duration::steps(4)), Duration::seconds(60), 8);
  EXPECT_DOUBLE_EQ(rate(schedule, 1), 0.025);
  EXPECT_DOUBLE_EQ(rate(schedule, 4), 0.1);
  EXPECT_DOUBLE_EQ(rate(schedule, 1000), 0.1);
  const auto at_once = plan_lr_schedule(config(Schedule::constant, Duration::steps(0)), Duration::steps(10), 8);
  EXPECT_DOUBLE_EQ(rate(at_once, 1), 0.1);
}

TEST(LearningRate, FallsToZeroAtTheEndOfTheRun) {
  const auto linear = plan_lr_schedule(config(Schedule::linear, Duration::steps(2)), Duration::steps(10), 8);
  EXPECT_DOUBLE_EQ(rate(linear, 2), 0.1);
  EXPECT_DOUBLE_EQ(rate(linear, 4), 0.1 * 0.75);
  EXPECT_DOUBLE_EQ(rate(linear, 10), 0);
  EXPECT_DOUBLE_EQ(rate(linear, 11), 0);
  const auto cosine = plan_lr_schedule(config(Schedule::cosine, Duration::steps(2)), Duration::steps(10), 8);
  EXPECT_DOUBLE_EQ(rate(cosine, 6), 0.05);
  EXPECT_NEAR(rate(cosine, 4), 0.1 * 0.8535533905932737, 1e-15);  // (1 + cos(pi / 4)) / 2
  EXPECT_NEAR(rate(cosine, 10), 0, 1e-15);
}

// All along the way: the formula with the C library's cosine, to a few of 53 bits.
TEST(LearningRate, CosineIsTheCosine) {
  const auto cosine = plan_lr_schedule(config(Schedule::cosine, Duration::steps(0)), Duration::steps(997), 8);
  for (int n = 1; n <= 1000; ++n) {
    const double expected = 0.1 * (1 + std::cos(std::numbers::pi * std::min(1.0, n / 997.0))) / 2;
    EXPECT_NEAR(rate(cosine, n), expected, 0.1 * 0x1p-50) << n;
  }
  EXPECT_EQ(rate(cosine, 997), 0);
}

TEST(LearningRate, DurationsInSamplesAreTurnedIntoSteps) {
  const Duration samples{80, Duration::Unit::samples}, warmup{16, Duration::Unit::samples};
  const auto linear = plan_lr_schedule(config(Schedule::linear, warmup), samples, 8);
  EXPECT_DOUBLE_EQ(rate(linear, 1), 0.05);
  EXPECT_DOUBLE_EQ(rate(linear, 6), 0.05);
}

// 100 samples by batches of 4, then by batches of 8: the place on the curve stays where it was.
TEST(LearningRate, AnotherBatchGoesOnWhereTheSamplesAre) {
  const Duration samples{200, Duration::Unit::samples}, warmup{40, Duration::Unit::samples};
  const auto linear = plan_lr_schedule(config(Schedule::linear, warmup), samples, 8);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 5, 20), 0.05);  // in the warm-up
  EXPECT_DOUBLE_EQ(learning_rate(linear, 25, 104), 0.1 * 96 / 160);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 37, 200), 0);
  // What is given in steps counts steps.
  const auto by_steps = plan_lr_schedule(config(Schedule::linear, Duration::steps(10)), Duration::steps(50), 8);
  EXPECT_DOUBLE_EQ(learning_rate(by_steps, 5, 20), 0.05);
  EXPECT_DOUBLE_EQ(learning_rate(by_steps, 30, 140), 0.05);
}

// app_config.cpp has refused it before.
TEST(LearningRate, AScheduleOverTimeIsABug) {
  for (const auto schedule : {Schedule::linear, Schedule::cosine})
    EXPECT_EQ(test::error_of([&] {
                plan_lr_schedule(config(schedule, Duration::steps(0)), Duration::seconds(60), 8);
              }).exit(),
              Exit::bug);
  EXPECT_EQ(test::error_of([&] {
              plan_lr_schedule(config(Schedule::constant, Duration::seconds(3)), Duration::steps(9), 8);
            }).exit(),
            Exit::bug);
}

TEST(Ema, DecayWarmsUp) {
  const EmaConfig warm{.enabled = true, .decay = 0.9, .warmup = true};
  EXPECT_DOUBLE_EQ(ema_decay(warm, 1), 0);
  EXPECT_DOUBLE_EQ(ema_decay(warm, 2), 2.0 / 11);
  EXPECT_DOUBLE_EQ(ema_decay(warm, 10), 10.0 / 19);
  EXPECT_DOUBLE_EQ(ema_decay(warm, 1000), 0.9);
  EXPECT_DOUBLE_EQ(ema_decay({}, 15001), 15001.0 / 15010) << "what goes on after 15,000 updates is not behind it";
  EXPECT_DOUBLE_EQ(ema_decay({.enabled = true, .decay = 0.9, .warmup = false}, 1), 0.9);
}

TEST(Clip, ScalesLongGradientsOnly) {
  EXPECT_DOUBLE_EQ(clip_factor(1.0, 0.5), 1.0);
  EXPECT_DOUBLE_EQ(clip_factor(1.0, 4.0), 1.0 / (4.0 + 1e-6));
  EXPECT_DOUBLE_EQ(clip_factor(std::nullopt, 4.0), 1.0);
}

}  // namespace
}  // namespace millrace
