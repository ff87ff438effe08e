// Trainers that wait for a producer: who is named in the log, and when.
#include "leaving.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include "mpi_world.h"
#include "train/own_log.h"

namespace millrace {
namespace {

struct LinearNet : torch::nn::Module {
  LinearNet() { register_parameter("weight", torch::zeros({8})); }
};

// Its batch is there at the call after `missing` others; until then nothing has come from producer 1.
class LateTask final : public Task {
 public:
  bool next_batch(double) override { return missing-- <= 0; }
  std::optional<Overdue> overdue(double) const override {
    return Overdue{fmt::format("samples of stripe {} from the producer on rank 9", test_world().rank()), 1};
  }
  void stop_producers() override {}
  const std::vector<SampleRef>& refs() const override { return refs_; }
  std::vector<torch::Tensor> inputs(std::int64_t, std::int64_t) override { return {}; }
  torch::Tensor loss(const std::vector<torch::Tensor>&) override { return {}; }
  void start_record() override {}
  std::map<std::string, torch::Tensor> take_record() override { return {}; }
  std::map<int, ProducerReport> producer_reports() override { return {}; }
  double queue_fill() override { return 0; }
  LedgerDelta take_ledger_delta() override { return {}; }
  int producer_signal() override { return 0; }

  int missing = 0;

 private:
  std::vector<SampleRef> refs_;
};

struct Waiting {
  explicit Waiting(const LatePatience& patience) : leaving(context, patience) {}

  // On the trainers from `first` on the batch is late.
  void wait(int first = 0) {
    task.missing = test_world().rank() >= first ? 3 : 0;
    EXPECT_TRUE(leaving.wait_for_batches(0));
  }

  LateTask task;
  LinearNet net;
  ParallelConfig parallel;
  ShardedModel model{net,
                     {"weight"},
                     plan_shards(parallel, std::vector<std::string>(test_world().size(), "n1")),
                     parallel,
                     test_world().group()};
  OptimConfig optim;
  ShardedAdamW optimizer{model, optim, EmaConfig{}};
  LoopConfig config;
  DataPlan data;
  TrainerContext context{.task = task,
                         .model = model,
                         .optimizer = optimizer,
                         .trainers = test_world().group(),
                         .config = config,
                         .optim = optim,
                         .data = data,
                         .max_bad_share = 1,
                         .device = torch::kCPU,
                         .manifest_extra = {},
                         .producer_ranks = {{8, "n4"}, {9, "n5"}}};
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

}  // namespace
}  // namespace millrace
