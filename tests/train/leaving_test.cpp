// Trainers that wait for a producer: who is named in the log, and when; and when they leave instead.
#include "leaving.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <limits>
#include <thread>

#include "millrace/core/clock.h"
#include "millrace/core/stacks.h"
#include "own_log.h"
#include "train/small_trainer.h"

namespace millrace {
namespace {

// Its batch is there at the call after `missing` others; until then nothing has come from producer 1.
class LateTask final : public test::IdleTask {
 public:
  bool next_batch(double) override {
    if (missing-- <= 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return false;
  }
  std::optional<Overdue> overdue(double) const override {
    return Overdue{fmt::format("samples of stripe {} from the producer on rank 9", test_world().rank()), 1};
  }

  int missing = 0;
};

struct Waiting {
  explicit Waiting(const LatePatience& patience) : leaving(trainer.context, patience) {
    trainer.context.producer_ranks = {{8, "n4"}, {9, "n5"}};
  }

  // On the trainers from `first` on the batch is late.
  void wait(int first = 0) {
    task.missing = test_world().rank() >= first ? 3 : 0;
    EXPECT_TRUE(leaving.wait_for_batches(0));
  }

  LateTask task;
  test::SmallTrainer trainer{task};
  Leaving leaving;
};

constexpr double never = 1e9;

// Every trainer lacks its samples, or the last one alone.
TEST(LateProducer, IsNamedOnceByTheFirstTrainerForAll) {
  for (const int first : {0, test_world().size() - 1}) {
    Waiting waiting({.usual = never, .first = 0, .again = never});
    const test::OwnLog log;
    waiting.wait(first);
    waiting.wait(first);
    const int told = test_world().rank() == 0 ? 1 : 0;
    const auto named = fmt::format("no samples of stripe {} from the producer on rank 9 (n5) for 0 s\n", first);
    EXPECT_EQ(log.count(named), told) << log.text();
    EXPECT_EQ(log.count(" warning "), told) << log.text();
    EXPECT_EQ(log.count("they came after "), told) << log.text();
  }
}

// Also within one wait, which looks three times here.
TEST(LateProducer, IsNamedAgainAfterAWhile) {
  Waiting waiting({.usual = never, .first = 0, .again = 0});
  const test::OwnLog log;
  for (int i = 0; i < 3; ++i) waiting.wait(test_world().size() - 1);
  const int told = test_world().rank() == 0 ? 3 : 0;
  EXPECT_EQ(log.count("no samples of "), 3 * told) << log.text();
  EXPECT_EQ(log.count("they came after "), told) << log.text();
}

TEST(LateProducer, HasMoreTimeBeforeTheFirstStep) {
  Waiting waiting({.usual = 0, .first = never, .again = never});
  const test::OwnLog log;
  waiting.wait();
  EXPECT_EQ(log.count("no samples of "), 0) << log.text();
  waiting.leaving.step_took(1);
  waiting.wait();
  EXPECT_EQ(log.count("no samples of "), test_world().rank() == 0 ? 1 : 0) << log.text();
}

TEST(LateProducer, IsNotNamedForAShortWait) {
  Waiting waiting(LatePatience{});
  waiting.leaving.step_took(1);
  const test::OwnLog log;
  waiting.wait();
  EXPECT_EQ(log.count("no samples of "), 0) << log.text();
  EXPECT_EQ(log.count("they came after "), 0) << log.text();
}

// It may still be loading then.
TEST(SilentProducer, HasFiveTimesAsLongBeforeTheFirstStep) {
  stacks::write_to("/dev/null", "");  // else four seconds are waited for stacks that nobody writes
  for (const bool is_first : {true, false}) {
    Waiting waiting(LatePatience{});
    waiting.trainer.config.guard.hang_timeout = {Duration::seconds(0.2)};
    if (!is_first) waiting.leaving.step_took(1);
    waiting.task.missing = std::numeric_limits<int>::max();
    EXPECT_FALSE(waiting.leaving.wait_for_batches(0));
    const auto failure = waiting.leaving.shared_failure();
    ASSERT_TRUE(failure);
    const std::string said = failure->what(), expected = is_first ? " for 1 s (host n5)" : " for 0 s (host n5)";
    EXPECT_EQ(failure->exit(), Exit::suspect_node) << said;
    EXPECT_NE(said.find(" from the producer on rank 9" + expected), std::string::npos) << said;
  }
}

// ... a thousand seconds before the job's end, when a step has taken so long, pictures have, and a save would.
bool step_begins(double step, double pictures, double save) {
  ::setenv("MILLRACE_END_TIME", fmt::format("{:.0f}", unix_seconds() + 1000).c_str(), /*overwrite=*/1);
  Waiting waiting(LatePatience{});
  ::unsetenv("MILLRACE_END_TIME");
  waiting.leaving.step_took(step);
  waiting.leaving.pictures_took(pictures);
  const bool begins = waiting.leaving.wait_for_batches(save).has_value();
  EXPECT_EQ(waiting.leaving.reason(), begins ? "" : "the job's time limit");
  return begins;
}

// Twice as long as has been needed, and half a minute.
TEST(EndOfTheJob, LeavesTimeForAStepOrPicturesAndASave) {
  EXPECT_TRUE(step_begins(300, 300, 0));
  EXPECT_FALSE(step_begins(490, 0, 0));
  EXPECT_FALSE(step_begins(0, 490, 0));
  EXPECT_FALSE(step_begins(0, 0, 490));
  EXPECT_FALSE(step_begins(250, 0, 240));
}

// That of another job, say.
TEST(EndOfTheJob, ThatIsPastStopsNobody) {
  ::setenv("MILLRACE_END_TIME", "1000", /*overwrite=*/1);
  Waiting waiting(LatePatience{});
  ::unsetenv("MILLRACE_END_TIME");
  EXPECT_TRUE(waiting.leaving.wait_for_batches(0));
  EXPECT_EQ(waiting.leaving.reason(), "");
}

}  // namespace
}  // namespace millrace
