#pragma once
#include <torch/nn/module.h>
#include <torch/utils.h>

#include "millrace/train/trainer_context.h"
#include "mpi_world.h"

// What parts of the training loop need around them.
namespace millrace::test {

// Nothing to train, and nothing to train it with.
class IdleTask : public Task {
 public:
  bool next_batch(double) override { return false; }
  const std::vector<SampleRef>& refs() const override {
    static const std::vector<SampleRef> none;
    return none;
  }
  std::vector<torch::Tensor> inputs(std::int64_t, std::int64_t) override { return {}; }
  torch::Tensor loss(const std::vector<torch::Tensor>&) override { return {}; }
  LedgerDelta take_ledger_delta() override { return {}; }
};

struct LinearNet : torch::nn::Module {
  LinearNet() { register_parameter("weight", torch::zeros({128})); }
};

// Each rank of the test is one; they share the optimizer's state in equal parts.
struct SmallTrainer {
  explicit SmallTrainer(Task& its_task) : task(its_task) {}

  Task& task;
  LinearNet net;
  ParallelConfig parallel;
  ShardedModel model{net, {"weight"}, plan_shards(parallel, test_world().hosts()), parallel, test_world().group()};
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
                         .manifest_extra = {}};
};

}  // namespace millrace::test
