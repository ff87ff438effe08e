// Training on shards against torch::optim::AdamW on whole tensors, with the same data split over the ranks.
#include "sharded_training.h"
#include "millrace/nn/fused.h"
#include "millrace/nn/weights.h"

#include <torch/nn.h>
#include <torch/optim.h>

namespace millrace {
namespace {

struct Reference {
  explicit Reference(std::optional<double> clip)
      : net(make_net(1)), clip(clip), adamw(net->parameters(), options(clip)) {}

  static torch::optim::AdamWOptions options(std::optional<double> clip) {
    const auto config = optim_config(clip);
    return torch::optim::AdamWOptions(config.lr)
        .betas({config.betas[0], config.betas[1]})
        .eps(config.eps)
        .weight_decay(config.weight_decay);
  }

  double step(int number) {
    adamw.zero_grad();
    loss_of(net, batch_of_step(number), 0, global_batch).backward();
    const double norm = torch::nn::utils::clip_grad_norm_(net->parameters(), clip.value_or(1e30));
    adamw.step();
    return norm;
  }

  SmallNet net;
  std::optional<double> clip;
  torch::optim::AdamW adamw;
};

// On a GPU, too, against AdamW on the CPU.
void expect_plain_adamw(const Settings& settings) {
  Training training(settings);
  Reference reference(settings.clip);
  auto ema = flat_parameters(reference.net);
  expect_close(training.weights(), ema, 1e-12);
  for (int step = 1; step <= 20; ++step) {
    const double norm = training.step(step), expected_norm = reference.step(step);
    EXPECT_NEAR(norm, expected_norm, 1e-4 * expected_norm);
    EXPECT_GT(norm, 1.0);  // or the clip would not be tested
    const double decay = step == 1 ? 0 : std::min(0.8, double(step) / (9 + step));
    ema = decay * ema + (1 - decay) * flat_parameters(reference.net);
  }
  // Other kernels for other batches, and sums in another order; where a gradient is almost 0, AdamW makes more of it.
  const double tolerance = settings.device.is_cuda() ? 1e-4 : 2e-5;
  expect_close(training.weights(), flat_parameters(reference.net), tolerance);
  const auto weights = training.weights();
  torch::Tensor shown;
  training.optimizer.with_ema([&] { shown = training.weights(); });
  expect_close(shown, ema, tolerance);
  EXPECT_GT((shown - weights).abs().max().item<double>(), 1e-3);
  EXPECT_TRUE(torch::equal(training.weights(), weights));
  if (!training.plan.splits_parameters()) {
    EXPECT_TRUE(torch::equal(flat_parameters(training.net), weights));
  }
  EXPECT_TRUE(training.optimizer.differing_trainers().trainers.empty());
  EXPECT_EQ(training.optimizer.updates(), 20);
}

class ShardedTraining
    : public test::OnDevicesOfRanks<std::tuple<torch::DeviceType, Strategy, std::optional<double>, int>> {};

TEST_P(ShardedTraining, EqualsPlainAdamW) {
  const auto& [type, strategy, clip, accumulation] = GetParam();
  expect_plain_adamw({.strategy = strategy, .clip = clip, .accumulation = accumulation, .device = device()});
}

std::string name_of_training(const testing::TestParamInfo<ShardedTraining::ParamType>& test) {
  const auto& [type, strategy, clip, accumulation] = test.param;
  return fmt::format("{}_{}_{}_{}", test::name_of(type), to_string(strategy), clip ? "clipped" : "unclipped",
                     accumulation);
}
INSTANTIATE_TEST_SUITE_P(Devices, ShardedTraining,
                         testing::Combine(test::all_devices(), testing::ValuesIn(strategies),
                                          testing::Values(std::optional<double>(1.0), std::nullopt),
                                          testing::Values(1, 2, 4)),
                         name_of_training);

// As GPUs train, by the twins of their kernels.
TEST(ShardedTraining, ByFusedKernelsEqualsPlainAdamW) {
  nn::use_fused_kernels(nn::FusedKernels::everywhere);
  for (const auto strategy : strategies) expect_plain_adamw({.strategy = strategy});
  nn::use_fused_kernels(nn::FusedKernels::by_device);
}

torch::Tensor trained(const Settings& settings) {
  Training training(settings);
  for (int step = 1; step <= 4; ++step) training.step(step);
  return training.weights();
}

// NOTE [Order of sums] in sharded_model.h.
TEST(ShardedTrainingBits, StrategyAndBucketSizeDoNotMatter) {
  const auto reference = trained({.strategy = Strategy::ddp, .clip = std::nullopt});
  EXPECT_TRUE(torch::equal(trained({.strategy = Strategy::shard_grad_op, .clip = std::nullopt}), reference));
  EXPECT_TRUE(
      torch::equal(trained({.strategy = Strategy::shard_grad_op, .bucket_mb = 64, .clip = std::nullopt}), reference));
  const auto one_turn = trained({.strategy = Strategy::ddp, .clip = std::nullopt, .accumulation = 1});
  for (const double bucket_mb : {1e-6, 0.001, 64.0})
    EXPECT_TRUE(torch::equal(
        trained({.strategy = Strategy::full_shard, .bucket_mb = bucket_mb, .clip = std::nullopt, .accumulation = 1}),
        one_turn));
  const auto hybrid = trained({.strategy = Strategy::hybrid, .clip = std::nullopt});
  EXPECT_TRUE(torch::equal(trained({.strategy = Strategy::hybrid, .bucket_mb = 64, .clip = std::nullopt}), hybrid));
}

torch::Tensor in_bfloat16(const torch::Tensor& tensor) {
  return tensor.to(torch::kBFloat16).to(torch::kFloat32);
}

// In float32, one after the other.
torch::Tensor added(const std::vector<torch::Tensor>& terms) {
  auto sum = terms.front().clone();
  for (std::size_t i = 1; i < terms.size(); ++i) sum += terms[i];
  return sum;
}

// Of one parameter: the gradients of all trainers' micro-batches of a step, (trainer, micro-batch), added up and
// rounded on their way as docs/numerics.md says.
torch::Tensor sum_on_its_way(const std::vector<std::vector<torch::Tensor>>& gradients, const ShardPlan& plan,
                             bool is_rounded) {
  const auto sent = [&](const torch::Tensor& tensor) {
    return is_rounded && gradients.size() > 1 ? in_bfloat16(tensor) : tensor;
  };
  const auto over_trainers = [&](const std::vector<torch::Tensor>& terms) {
    std::vector<torch::Tensor> of_replicas;
    for (int replica = 0; replica < plan.replicas; ++replica) {
      std::vector<torch::Tensor> own;
      for (int shard = 0; shard < plan.shards; ++shard) own.push_back(sent(terms[replica * plan.shards + shard]));
      of_replicas.push_back(sent(added(own)));
    }
    return sent(added(of_replicas));
  };
  std::vector<torch::Tensor> terms;
  if (!plan.splits_parameters()) {
    for (const auto& of_trainer : gradients) terms.push_back(added(of_trainer));
    return over_trainers(terms);
  }
  for (std::size_t turn = 0; turn < gradients.front().size(); ++turn) {
    std::vector<torch::Tensor> of_turn;
    for (const auto& of_trainer : gradients) of_turn.push_back(of_trainer[turn]);
    terms.push_back(over_trainers(of_turn));
  }
  return added(terms);
}

// Of step 1, by trainer, micro-batch and name, as they leave autograd.
std::vector<std::vector<std::map<std::string, torch::Tensor>>> all_gradients(int accumulation) {
  auto net = make_net(1);
  const auto batch = batch_of_step(1);
  const int share = global_batch / test_world().size();
  std::vector<std::vector<std::map<std::string, torch::Tensor>>> all(test_world().size());
  for (int trainer = 0; trainer < test_world().size(); ++trainer)
    for (int i = 0; i < accumulation; ++i) {
      const int begin = trainer * share;
      net->zero_grad();
      loss_of(net, batch, begin + share * i / accumulation, begin + share * (i + 1) / accumulation).backward();
      auto& gradients = all[trainer].emplace_back();
      for (const auto& item : net->named_parameters()) gradients[item.key()] = item.value().grad().clone();
    }
  return all;
}

// NOTE [Order of sums] in sharded_model.h, to the bit, and where rounding is asked for.
TEST(ShardedTrainingBits, SumsAreFormedInTheOrderThatIsPromised) {
  for (const auto strategy : strategies)
    for (const auto dtype : {ReduceDtype::float32, ReduceDtype::bfloat16}) {
      Training training({.strategy = strategy, .reduce_dtype = {dtype}});
      training.gradients(1);
      const auto all = all_gradients(training.accumulation);
      for (const auto& slice : slices_of_shard(training.model.layout(), training.model.shard())) {
        std::vector<std::vector<torch::Tensor>> of_parameter;
        for (const auto& of_trainer : all) {
          auto& turns = of_parameter.emplace_back();
          for (const auto& gradients : of_trainer)
            turns.push_back(in_storage_order(gradients.at(slice.name), slice.channels_last));
        }
        const auto sum = sum_on_its_way(of_parameter, training.plan, dtype == ReduceDtype::bfloat16);
        EXPECT_TRUE(torch::equal(training.model.gradient_shard(slice.bucket)
                                     .slice(0, slice.shard_offset, slice.shard_offset + slice.end - slice.begin),
                                 sum.slice(0, slice.begin, slice.end)))
            << to_string(strategy) << (dtype == ReduceDtype::bfloat16 ? " in bfloat16: " : ": ") << slice.name;
      }
    }
}

// Sixteen bits hold 8 of a sum's: 64 micro-batches summed in bfloat16 are wrong by percents.
TEST(ShardedTrainingBits, MicroBatchesOfABfloat16ModelAreSummedInFloat32) {
  for (const auto strategy : strategies) {
    Training training({.strategy = strategy, .dtype = torch::kBFloat16});
    constexpr int turns = 64;
    std::vector<torch::Tensor> expected(training.model.buckets());
    for (int turn = 0; turn < turns; ++turn) {
      training.model.begin_gradients(1);
      loss_of(training.net, batch_of_step(turn), 0, 2).backward();
      training.model.finish_gradients();
      for (int b = 0; b < training.model.buckets(); ++b) {
        const auto gradient = training.model.gradient_shard(b).to(torch::kFloat64);
        expected[b] = turn == 0 ? gradient : expected[b] + gradient;
      }
    }
    training.model.begin_gradients(turns);
    for (int turn = 0; turn < turns; ++turn) loss_of(training.net, batch_of_step(turn), 0, 2).backward();
    training.model.finish_gradients();
    for (int b = 0; b < training.model.buckets(); ++b)
      EXPECT_LT(relative_error(training.model.gradient_shard(b).to(torch::kFloat64), expected[b]), 1e-5)
          << to_string(strategy);
  }
}

TEST(ShardedTrainingBits, GradientsTravelInBfloat16WhereAsked) {
  if (test_world().size() == 1) GTEST_SKIP() << "nothing travels on one rank";
  for (const auto strategy : strategies) {
    Training exact({.strategy = strategy}), rounded({.strategy = strategy, .reduce_dtype = {ReduceDtype::bfloat16}});
    exact.gradients(1);
    rounded.gradients(1);
    for (int b = 0; b < exact.model.buckets(); ++b) {
      const auto& gradient = rounded.model.gradient_shard(b);
      EXPECT_LT(relative_error(gradient, exact.model.gradient_shard(b)), 1e-2);
      if (gradient.abs().max().item<double>() > 0) {
        EXPECT_FALSE(torch::equal(gradient, exact.model.gradient_shard(b)));
      }
      if (strategy != Strategy::full_shard) {  // which adds its micro-batches up afterwards
        EXPECT_TRUE(torch::equal(gradient, gradient.to(torch::kBFloat16).to(torch::kFloat32)));
      }
    }
  }
}

class ShardedTrainingOnDevice : public test::OnDeviceOfRanks {};
MILLRACE_ON_DEVICES(ShardedTrainingOnDevice);

TEST_P(ShardedTrainingOnDevice, MastersStayFloat32UnderBfloat16) {
  Training training({.dtype = torch::kBFloat16, .device = device()});
  for (int step = 1; step <= 4; ++step) training.step(step);
  Reference reference(1.0);
  for (int step = 1; step <= 4; ++step) reference.step(step);
  const auto& masters = training.optimizer.state().at("weights");
  bool rounded = false;
  for (int b = 0; b < training.model.buckets(); ++b) {
    EXPECT_EQ(masters[b].scalar_type(), torch::kFloat32);
    EXPECT_TRUE(torch::equal(masters[b].to(torch::kBFloat16), training.model.parameter_shard(b)));
    rounded |= !torch::equal(masters[b], training.model.parameter_shard(b).to(torch::kFloat32));
  }
  EXPECT_TRUE(rounded);
  expect_close(flat_parameters(training.net).to(torch::kFloat32), flat_parameters(reference.net), 2e-2);
  const auto before = flat_parameters(training.net);
  training.optimizer.with_ema([] {});
  EXPECT_TRUE(torch::equal(flat_parameters(training.net), before));
}

// What a rank's shards of this kind hold, and what they would if they came from these weights.
void expect_state_from(const std::map<std::string, torch::Tensor>& weights, const ShardedModel& model,
                       const ShardedAdamW& optimizer, const std::string& kind) {
  for (const auto& slice : slices_of_shard(model.layout(), model.shard())) {
    auto whole = weights.at(slice.name);
    if (slice.channels_last) whole = whole.permute({0, 2, 3, 1});
    const auto expected = whole.reshape(-1).slice(0, slice.begin, slice.end);
    const auto shard = optimizer.state().at(kind)[slice.bucket].cpu();
    EXPECT_TRUE(torch::equal(shard.slice(0, slice.shard_offset, slice.shard_offset + expected.numel()), expected))
        << kind << " of " << slice.name;
  }
}

// Rank 0's, as its bfloat16 ones are: another node may have an older copy of the pipeline.
TEST_P(ShardedTrainingOnDevice, MastersStartFromRank0sWeightsBeforeTheCast) {
  const auto of_rank_0 = weights_of(*make_net(1));
  for (const auto strategy : strategies) {
    auto net = make_net(1 + test_world().rank());
    auto originals = weights_of(*net);
    net->to(device(), torch::kBFloat16);
    const ParallelConfig parallel{
        .strategy = strategy, .shard_size = {std::min(2, test_world().size())}, .bucket_mb = 0.001};
    ShardedModel model(*net, parameter_names(*net), plan_shards(parallel, test_world().hosts()), parallel,
                       test_world().group());
    ShardedAdamW optimizer(model, optim_config(1.0), ema_config);
    optimizer.start_from(std::move(originals));
    for (const auto* kind : {"weights", "ema"}) expect_state_from(of_rank_0, model, optimizer, kind);
    optimizer.start_ema_from(weights_of(*make_net(11 + test_world().rank())));
    expect_state_from(of_rank_0, model, optimizer, "weights");
    expect_state_from(weights_of(*make_net(11)), model, optimizer, "ema");
    EXPECT_EQ(ema_decay({.decay = 0.9999}, optimizer.ema_updates() + 1), 0.9999) << "behind the warm-up";
  }
}

// As diffusers' EMAModel goes on: by rank 0's count, whatever the others have.
// torch.optim takes any clip, too.
TEST(ShardedTraining, AClipOfNextToNothingLeavesTheWeightsFinite) {
  Training training({.strategy = Strategy::ddp});
  training.gradients(1);
  training.optimizer.step(1e-3, /*gradient_scale=*/1e-43);
  for (const auto& parameter : training.net->parameters()) EXPECT_TRUE(parameter.isfinite().all().item<bool>());
}

TEST(ShardedTraining, AnEmaGoesOnAfterItsUpdates) {
  const int rank = test_world().rank();
  const auto start = weights_of(*make_net(11));
  for (const auto kernels : {nn::FusedKernels::by_device, nn::FusedKernels::everywhere}) {
    nn::use_fused_kernels(kernels);
    Training training;
    training.optimizer.start_ema_from(weights_of(*make_net(11)), rank == 1 ? std::nullopt : std::optional(5 + rank));
    EXPECT_EQ(training.optimizer.ema_updates(), 5);
    training.step(1);
    EXPECT_EQ(training.optimizer.ema_updates(), 6);
    // The sixth: (1 + 5) / (10 + 5) of the average are kept.
    for (const auto& slice : slices_of_shard(training.model.layout(), training.model.shard())) {
      const auto part = [&](const std::string& kind) {
        const auto shard = training.optimizer.state().at(kind)[slice.bucket];
        return shard.slice(0, slice.shard_offset, slice.shard_offset + slice.end - slice.begin);
      };
      auto before = start.at(slice.name);
      if (slice.channels_last) before = before.permute({0, 2, 3, 1});
      const auto expected = 0.4 * before.reshape(-1).slice(0, slice.begin, slice.end) + 0.6 * part("weights");
      expect_close(part("ema"), expected, 1e-6);
    }
  }
  nn::use_fused_kernels(nn::FusedKernels::by_device);
}

// The state is the same bits, the steps from there on the same but for what a GPU's kernels may add in another order.
TEST_P(ShardedTrainingOnDevice, StateMovesToAnotherOptimizer) {
  Training first({.device = device()}), second({.device = device()});
  for (int step = 1; step <= 2; ++step) first.step(step);
  for (const auto& [kind, shards] : first.optimizer.state()) {
    for (std::size_t b = 0; b < shards.size(); ++b) second.optimizer.state().at(kind)[b].copy_(shards[b]);
  }
  second.optimizer.set_updates(first.optimizer.updates(), first.optimizer.ema_updates());
  second.optimizer.publish_weights();
  EXPECT_TRUE(torch::equal(flat_parameters(second.net), flat_parameters(first.net)));
  for (int step = 3; step <= 4; ++step) {
    first.step(step);
    second.step(step);
  }
  const auto expect_same = [&](const torch::Tensor& actual, const torch::Tensor& expected) {
    if (is_cuda()) return expect_close(actual, expected, 1e-5);
    EXPECT_TRUE(torch::equal(actual, expected));
  };
  expect_same(flat_parameters(second.net), flat_parameters(first.net));
  for (std::size_t b = 0; b < first.optimizer.state().at("ema").size(); ++b)
    expect_same(second.optimizer.state().at("ema")[b], first.optimizer.state().at("ema")[b]);
}

// The lowest bit of one element, by way of a copy that the arithmetic does not touch.
void flip_bit(torch::Tensor tensor) {
  torch::NoGradGuard no_grad;
  tensor.flatten().slice(0, 0, 1).view(torch::kInt32).bitwise_xor_(1);
}

TEST(ShardedTraining, ADamagedWeightIsFoundOnEveryRank) {
  if (test_world().size() == 1) GTEST_SKIP() << "needs another rank";
  for (const auto strategy : {Strategy::ddp, Strategy::shard_grad_op, Strategy::hybrid}) {
    Training training({.strategy = strategy});
    if (test_world().rank() == 1) flip_bit(training.net->out->bias.data());
    // Of two nobody knows which is right. In ddp and hybrid the weights are their own masters, too.
    auto damaged = test_world().size() == 2 ? std::vector<int>{0, 1} : std::vector<int>{1};
    if (test_world().size() == 4 && strategy == Strategy::hybrid && training.owns("out.bias", 1)) damaged = {1, 3};
    EXPECT_EQ(training.optimizer.differing_trainers(), (Outvoted{damaged, damaged.size() == 1})) << to_string(strategy);
  }
}

// What replicas hold of a shard's state is the same, too; in shard_grad_op nobody else has it.
TEST(ShardedTraining, ADamagedStateIsFoundAmongReplicas) {
  if (test_world().size() == 1) GTEST_SKIP() << "needs another rank";
  for (const std::string kind : {"exp_avg", "exp_avg_sq", "ema"}) {
    for (const auto strategy : {Strategy::ddp, Strategy::hybrid, Strategy::shard_grad_op}) {
      Training training({.strategy = strategy});
      training.step(1);
      EXPECT_EQ(training.optimizer.differing_trainers().trainers, std::vector<int>{});
      if (test_world().rank() == 1) flip_bit(training.optimizer.state().at(kind)[0]);
      std::vector<int> damaged;
      if (strategy == Strategy::ddp) damaged = test_world().size() == 2 ? std::vector<int>{0, 1} : std::vector<int>{1};
      if (strategy == Strategy::hybrid && test_world().size() == 4) damaged = {1, 3};  // of two replicas
      EXPECT_EQ(training.optimizer.differing_trainers().trainers, damaged) << kind << " in " << to_string(strategy);
    }
  }
}

TEST(ShardedModel, ViewsKeepShapeAndMemoryOrder) {
  Training training;
  const auto& weight = training.net->conv->weight;
  EXPECT_TRUE(weight.is_contiguous(torch::MemoryFormat::ChannelsLast));
  EXPECT_EQ(weight.sizes(), (std::vector<std::int64_t>{8, 3, 3, 3}));
  bool flagged = false;
  for (const auto& spec : training.model.layout().parameters)
    flagged |= spec.name == "conv.weight" && spec.channels_last;
  EXPECT_TRUE(flagged);
}

TEST(ShardedModel, AParameterOutsideItsBucketIsABug) {
  Training training;
  training.net->out->to(torch::kFloat64);
  EXPECT_THROW(training.model.begin_gradients(1), Error);
}

TEST(ShardedModel, WhatGetsNoGradientHasZero) {
  Training training;
  training.gradients(1);
  training.model.begin_gradients(1);
  training.net->conv(batch_of_step(1).image.slice(0, 0, 1)).sum().backward();
  training.model.finish_gradients();
  for (const auto& slice : slices_of_shard(training.model.layout(), training.model.shard())) {
    const auto gradient = training.model.gradient_shard(slice.bucket)
                              .slice(0, slice.shard_offset, slice.shard_offset + slice.end - slice.begin);
    EXPECT_EQ(gradient.abs().max().item<double>() > 0, slice.name.starts_with("conv.")) << slice.name;
  }
}

TEST(ShardedModel, LeavesTheModuleAsItWas) {
  auto net = make_net(1);
  {
    const ParallelConfig parallel;
    ShardedModel model(*net, parameter_names(*net), plan_shards(parallel, test_world().hosts()), parallel,
                       test_world().group());
  }
  loss_of(net, batch_of_step(1), 0, 1).backward();
  for (const auto& parameter : net->parameters()) EXPECT_TRUE(parameter.grad().defined());
}

}  // namespace
}  // namespace millrace
