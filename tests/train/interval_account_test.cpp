// Lines of metrics from steps whose times the test makes up, on the ranks of the test.
#include "interval_account.h"

#include <gtest/gtest.h>

#include <cmath>

#include "train/small_trainer.h"

namespace millrace {
namespace {

// Of each step this trainer has so many samples.
class ShareTask final : public test::IdleTask {
 public:
  explicit ShareTask(int share) : refs_(static_cast<std::size_t>(share)) {}
  const std::vector<SampleRef>& refs() const override { return refs_; }

 private:
  const std::vector<SampleRef> refs_;
};

// The trainers are ranks 8, 9, ... of the run.
struct Measured {
  Measured(int share, int global_batch) : task(share) {
    trainer.config.batch.global = global_batch;
    for (int rank = 0; rank < test_world().size(); ++rank) trainer.context.trainer_ranks.push_back({8 + rank, "n1"});
  }

  // In all a step takes `seconds`, for `wait` of which some trainer has no samples.
  void add(double seconds, double wait) {
    account.add(1, 1, {}, {.step = seconds, .samples = {.own = 0, .longest = wait}, .waited_others = 0});
  }
  // Whose own work takes so many of its seconds; in the others it waits for other trainers.
  void add_work(double seconds) {
    constexpr double step = 10;
    account.add(1, 1, {}, {.step = step, .samples = {}, .waited_others = step - seconds});
  }
  Metrics line() { return account.take({}, 0); }

  ShareTask task;
  test::SmallTrainer trainer{task};
  IntervalAccount account{trainer.context};
};

void expect_rates(const Metrics& metrics, double step_ms, double wait_ms, double images_per_second) {
  EXPECT_NEAR(metrics.step_ms, step_ms, 1e-6);
  EXPECT_NEAR(metrics.data_wait_ms, wait_ms, 1e-6);
  EXPECT_NEAR(metrics.images_per_second, images_per_second, 1e-6);
}

// Four steps in 3.2 s, of which 1.1 s are waits.
TEST(IntervalAccount, TellsTheMeansOfItsSteps) {
  Measured measured(8, 8);
  measured.add(2, 0.8);
  expect_rates(measured.account.totals({}), 2000, 800, 4);
  for (int step = 0; step < 3; ++step) measured.add(0.4, 0.1);
  expect_rates(measured.line(), 800, 275, 10);
  expect_rates(measured.account.totals({}), 400, 100, 20);
  measured.add(0.5, 0.2);
  expect_rates(measured.line(), 500, 200, 16);
}

// One that is not finite is in no mean.
TEST(IntervalAccount, TellsTheMeansOfFiniteLosses) {
  Measured measured(8, 8);
  const StepSeconds seconds{.step = 1, .samples = {}, .waited_others = 0};
  measured.account.add(1, 3, {{"l1", 1}, {"kl", 10}}, seconds);
  measured.account.add(std::nan(""), 1, {{"l1", 7}, {"kl", 7}}, seconds);
  measured.account.add(2, 5, {{"l1", 3}, {"kl", 40}}, seconds);
  const auto line = measured.line();
  EXPECT_EQ(line.loss, 1.5);
  EXPECT_EQ(line.grad_norm, 4);
  EXPECT_EQ(line.loss_parts, (LossParts{{"l1", 2}, {"kl", 25}}));
}

// The first trainer has one sample of each step, the second two, and so on.
TEST(IntervalAccount, TrainersWithMoreSamplesAreNoStragglers) {
  const int ranks = test_world().size(), share = test_world().rank() + 1;
  const bool is_last = share == ranks;
  Measured measured(share, ranks * (ranks + 1) / 2);
  for (int step = 0; step < 3; ++step) measured.add_work(0.1 * share);
  const auto even = measured.line();
  for (int step = 0; step < 3; ++step) measured.add_work((is_last ? 0.2 : 0.1) * share);
  const auto late = measured.line();
  EXPECT_NEAR(even.straggler, 1, 1e-6);
  EXPECT_NEAR(late.straggler, ranks > 1 ? 2 : 1, 1e-6);
  EXPECT_EQ(late.slowest_rank, 8 + ranks - 1);
}

}  // namespace
}  // namespace millrace
