// What trainers hold, on all ranks of the test, against what is computed from shapes.
#include "millrace/parallel/state_memory.h"
#include "millrace/nn/layers.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "late_collectives.h"
#include "live_memory.h"
#include "millrace/models/presets.h"
#include "millrace/models/unet_2d_condition.h"
#include "millrace/models/unet_cost.h"
#include "millrace/parallel/sharded_optimizer.h"
#include "mpi_world.h"

namespace millrace {
namespace {

UNet2DConditionConfig unet_config() {
  auto json = preset_configs(Preset::tiny).unet;
  json["block_out_channels"] = {64, 64, 128};
  return UNet2DConditionConfig::from_json(json);
}

struct Trainer {
  Trainer(Strategy strategy, const UNetPass& pass, bool overlaps = false, ReduceDtype travels = ReduceDtype::float32)
      : pass(pass),
        overlaps(overlaps),
        parallel{.strategy = strategy,
                 .shard_size = {std::min(2, test_world().size())},
                 .reduce_dtype = {travels},
                 .bucket_mb = 0.5},
        plan(plan_shards(parallel, test_world().hosts())),
        unet(make_unet()),
        model(*unet, execution_order(*unet), plan, parallel, test_world().group(), ShardedModel::Start::of_rank_0,
              overlaps ? LateCollectives::maker(transfers) : make_host_collectives),
        optimizer(model, OptimConfig{}, EmaConfig{}) {}

  UNet2DConditionModel make_unet() const {
    UNet2DConditionModel unet(config);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : unet->parameters()) parameter.fill_(0.01);
    nn::place(*unet, torch::kCPU, pass.dtype, pass.channels_last);
    unet->set_gradient_checkpointing(pass.gradient_checkpointing);
    return unet;
  }

  void step() {
    const auto sample = torch::zeros({pass.batch, config.in_channels, pass.height, pass.width}, pass.dtype);
    const auto context = torch::zeros({pass.batch, pass.tokens, config.cross_attention_dim.front()}, pass.dtype);
    model.begin_gradients(1);
    unet(sample, torch::tensor(500), context).to(torch::kFloat32).square().mean().backward();
    model.finish_gradients();
    model.gradient_norm();
    optimizer.step(1e-4);
  }

  StateMemory state() const {
    return plan_state_memory(model.layout(), plan, parallel, pass.dtype, /*has_ema=*/true, overlaps);
  }

  const UNet2DConditionConfig config = unet_config();
  const UNetPass pass;
  const bool overlaps;  // transfers take as long as they may
  LateCollectives::Order transfers;
  const ParallelConfig parallel;
  const ShardPlan plan;
  UNet2DConditionModel unet;
  ShardedModel model;
  ShardedAdamW optimizer;
};

class TrainerMemory : public testing::TestWithParam<std::tuple<Strategy, UNetPass, bool>> {};

TEST_P(TrainerMemory, IsStateAndActivations) {
  const auto& [strategy, pass, overlaps] = GetParam();
  // On several ranks one pass of little and one of much memory: in bfloat16, whose masters are split, and in float32.
  const bool is_of_one_rank = pass.gradient_checkpointing || (pass.height == 8 && pass.dtype == torch::kFloat32);
  if (test_world().size() > 1 && is_of_one_rank) GTEST_SKIP() << "tried on one rank";
  test::LiveMemory memory;
  Trainer trainer(strategy, pass, overlaps);
  const auto state = trainer.state();
  EXPECT_NEAR(static_cast<double>(state.lasting()) / static_cast<double>(memory.bytes()), 1, 0.001);
  memory.forget_peak();
  trainer.step();
  const auto predicted = state.peak(unet_activation_bytes(trainer.config, pass));
  // Where parameters are split, a step holds its largest buckets at another time than the most activations.
  EXPECT_NEAR(static_cast<double>(predicted) / static_cast<double>(memory.peak()), 1,
              trainer.plan.splits_parameters() ? 0.1 : 0.03);
}

// As trainers compute in float32.
UNetPass by_own_kernels(UNetPass pass) {
  pass.channels_last = pass.fused_kernels = true;
  return pass;
}

// The state is many times the activations, or the other way round.
INSTANTIATE_TEST_SUITE_P(
    , TrainerMemory,
    testing::Combine(testing::Values(Strategy::ddp, Strategy::shard_grad_op, Strategy::full_shard, Strategy::hybrid),
                     testing::Values(by_own_kernels({1, 8, 8}), UNetPass{1, 8, 8, torch::kBFloat16},
                                     by_own_kernels({2, 24, 24}), by_own_kernels({2, 24, 24, torch::kFloat32, true})),
                     testing::Bool()));

struct Peak {
  std::int64_t planned, measured;
};

Peak peak_of_step(Strategy strategy, bool overlaps, ReduceDtype travels) {
  const UNetPass pass{1, 8, 8, torch::kBFloat16};
  test::LiveMemory memory;
  Trainer trainer(strategy, pass, overlaps, travels);
  memory.forget_peak();
  trainer.step();
  return {trainer.state().peak(unet_activation_bytes(trainer.config, pass)), memory.peak()};
}

// Their copies come beside the buckets, except with full_shard, where a bucket makes room for its copy.
TEST(TrainerMemoryOfGradients, ThatTravelInBfloat16IsPlanned) {
  for (const auto strategy : {Strategy::ddp, Strategy::shard_grad_op, Strategy::full_shard, Strategy::hybrid})
    for (const bool overlaps : {false, true}) {
      SCOPED_TRACE(to_string(strategy));
      const auto usual = peak_of_step(strategy, overlaps, ReduceDtype::float32),
                 copied = peak_of_step(strategy, overlaps, ReduceDtype::bfloat16);
      EXPECT_LE(copied.measured - usual.measured, copied.planned - usual.planned);
      if (test_world().size() > 1 && strategy != Strategy::full_shard) {
        EXPECT_GT(copied.measured, usual.measured);
      }
    }
}

std::int64_t bytes_of_state(const ShardedAdamW& optimizer) {
  std::int64_t bytes = 0;
  for (const auto& [kind, shards] : optimizer.state())
    for (const auto& shard : shards) bytes += static_cast<std::int64_t>(shard.nbytes());
  return bytes;
}

// Masters, moments and EMA; with full_shard everything. Padding of the shards may take 5 % more.
TEST(TrainerMemoryOfShards, IsTheirShareOfTheWhole) {
  if (test_world().size() == 1) GTEST_SKIP() << "one rank holds the whole";
  const UNetPass pass{1, 8, 8, torch::kBFloat16};
  std::map<Strategy, double> state, all;
  for (const auto strategy : {Strategy::ddp, Strategy::shard_grad_op, Strategy::full_shard}) {
    const test::LiveMemory memory;
    const Trainer trainer(strategy, pass);
    state[strategy] = static_cast<double>(bytes_of_state(trainer.optimizer));
    all[strategy] = static_cast<double>(memory.bytes());
  }
  const double share = 1.05 / test_world().size();
  EXPECT_LT(state[Strategy::shard_grad_op], share * state[Strategy::ddp]);
  EXPECT_LT(state[Strategy::full_shard], share * state[Strategy::ddp]);
  EXPECT_LT(all[Strategy::full_shard], share * all[Strategy::ddp]);
}

}  // namespace
}  // namespace millrace
