// Training on shards against torch::optim::AdamW on whole tensors, with the same data split over the ranks.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "millrace/parallel/sharded_optimizer.h"
#include "mpi_world.h"

namespace millrace {
namespace {

constexpr int global_batch = 8;

struct SmallNetImpl : torch::nn::Module {
  SmallNetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)));
    norm = register_module("norm", torch::nn::GroupNorm(2, 8));
    out = register_module("out", torch::nn::Linear(8 * 4 * 4, 5));
    conv->weight.set_data(conv->weight.detach().contiguous(torch::MemoryFormat::ChannelsLast));
  }
  torch::Tensor forward(const torch::Tensor& image) { return out(torch::silu(norm(conv(image))).flatten(1)); }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::GroupNorm norm{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(SmallNet);

SmallNet make_net(int seed, torch::Dtype dtype = torch::kFloat32) {
  torch::manual_seed(seed);
  SmallNet net;
  net->to(dtype);
  return net;
}

struct Batch {
  torch::Tensor image, target;
};

Batch batch_of_step(int step) {
  torch::manual_seed(1000 + step);
  return {torch::randn({global_batch, 3, 4, 4}), torch::randn({global_batch, 5}) * 3};
}

// The part of the mean loss that samples [begin, end) of the global batch contribute.
torch::Tensor loss_of(SmallNet& net, const Batch& batch, int begin, int end) {
  const auto dtype = net->out->weight.scalar_type();
  const auto output = net(batch.image.slice(0, begin, end).to(dtype));
  return (output.to(torch::kFloat32) - batch.target.slice(0, begin, end)).square().sum() / global_batch;
}

struct Settings {
  Strategy strategy = Strategy::shard_grad_op;
  double bucket_mb = 0.001;
  std::optional<double> clip = 1.0;
  torch::Dtype dtype = torch::kFloat32;
};

OptimConfig optim_config(std::optional<double> clip) {
  OptimConfig config;
  config.lr = 3e-3;
  config.weight_decay = 0.1;
  config.clip = clip;
  return config;
}

const EmaConfig ema_config{.enabled = true, .decay = 0.8, .warmup = true};

// A net and what trains it on all ranks of the test.
struct Training {
  explicit Training(const Settings& settings = {})
      : net(make_net(1 + test_world().rank(), settings.dtype)),  // ranks differ until rank 0's weights are shared
        parallel{.strategy = settings.strategy,
                 .shard_size = {std::min(2, test_world().size())},
                 .bucket_mb = settings.bucket_mb},
        plan(plan_shards(parallel, test_world().hosts())),
        model(*net, blocks_of(*net, 1), plan, parallel, test_world().group()),
        optim(optim_config(settings.clip)),
        optimizer(model, optim, ema_config) {}

  // Two micro-batches per rank, where there are enough samples.
  double step(int number) {
    const int share = global_batch / test_world().size(), begin = test_world().rank() * share;
    const auto batch = batch_of_step(number);
    model.zero_gradients();
    loss_of(net, batch, begin, begin + share / 2).backward();
    loss_of(net, batch, begin + share / 2, begin + share).backward();
    model.reduce_gradients(1.0);
    const double norm = model.gradient_norm();
    optimizer.step(optim.lr, clip_factor(optim.clip, norm));
    return norm;
  }

  SmallNet net;
  ParallelConfig parallel;
  ShardPlan plan;
  ShardedModel model;
  OptimConfig optim;
  ShardedAdamW optimizer;
};

torch::Tensor flat_parameters(const SmallNet& net) {
  std::vector<torch::Tensor> all;
  for (const auto& parameter : net->parameters()) all.push_back(parameter.detach().reshape({-1}));
  return torch::cat(all).clone();
}

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

void expect_close(const torch::Tensor& actual, const torch::Tensor& expected, double tolerance) {
  EXPECT_LT((actual - expected).abs().max().item<double>(), tolerance);
}

class ShardedTraining : public testing::TestWithParam<std::tuple<Strategy, std::optional<double>>> {};

TEST_P(ShardedTraining, EqualsPlainAdamW) {
  const auto& [strategy, clip] = GetParam();
  Training training({.strategy = strategy, .clip = clip});
  Reference reference(clip);
  auto ema = flat_parameters(reference.net);
  expect_close(flat_parameters(training.net), ema, 1e-12);
  for (int step = 1; step <= 6; ++step) {
    const double norm = training.step(step), expected_norm = reference.step(step);
    EXPECT_NEAR(norm, expected_norm, 1e-5 * expected_norm);
    EXPECT_GT(norm, 1.0);  // or the clip would not be tested
    const double decay = step == 1 ? 0 : std::min(0.8, double(step) / (9 + step));
    ema = decay * ema + (1 - decay) * flat_parameters(reference.net);
  }
  // One rank only differs in the kernel; more ranks also add in another order.
  const double tolerance = test_world().size() == 1 ? 1e-6 : 5e-6;
  expect_close(flat_parameters(training.net), flat_parameters(reference.net), tolerance);
  const auto weights = flat_parameters(training.net);
  torch::Tensor shown;
  training.optimizer.with_ema([&] { shown = flat_parameters(training.net); });
  expect_close(shown, ema, tolerance);
  EXPECT_GT((shown - weights).abs().max().item<double>(), 1e-3);
  EXPECT_TRUE(torch::equal(flat_parameters(training.net), weights));
  training.model.compare_parameters();
  EXPECT_EQ(training.optimizer.updates(), 6);
}

INSTANTIATE_TEST_SUITE_P(All, ShardedTraining,
                         testing::Combine(testing::Values(Strategy::ddp, Strategy::shard_grad_op, Strategy::hybrid),
                                          testing::Values(std::optional<double>(1.0), std::nullopt)));

torch::Tensor trained(const Settings& settings) {
  Training training(settings);
  for (int step = 1; step <= 4; ++step) training.step(step);
  return flat_parameters(training.net);
}

TEST(ShardedTrainingBits, StrategyAndBucketSizeDoNotMatter) {
  const auto reference = trained({.strategy = Strategy::ddp, .clip = std::nullopt});
  const auto sharded = trained({.strategy = Strategy::shard_grad_op, .clip = std::nullopt});
  const auto one_bucket = trained({.strategy = Strategy::shard_grad_op, .bucket_mb = 64, .clip = std::nullopt});
  EXPECT_TRUE(torch::equal(sharded, reference));
  EXPECT_TRUE(torch::equal(one_bucket, reference));
}

TEST(ShardedTrainingBits, MastersStayFloat32UnderBfloat16) {
  Training training({.dtype = torch::kBFloat16});
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

TEST(ShardedTrainingBits, MastersStartFromTheWeightsBeforeTheCast) {
  auto net = make_net(1);
  auto originals = weights_of(*net);
  net->to(torch::kBFloat16);
  const ParallelConfig parallel{.bucket_mb = 0.001};
  ShardedModel model(*net, blocks_of(*net, 1), plan_shards(parallel, test_world().hosts()), parallel,
                     test_world().group());
  ShardedAdamW optimizer(model, optim_config(1.0), ema_config);
  optimizer.start_from(originals);
  for (const auto& slice : slices_of_shard(model.layout(), model.shard())) {
    auto original = originals.at(slice.name);
    if (slice.channels_last) original = original.permute({0, 2, 3, 1});
    const auto expected = original.reshape(-1).slice(0, slice.begin, slice.end);
    for (const auto* kind : {"weights", "ema"}) {
      const auto& shard = optimizer.state().at(kind)[slice.bucket];
      EXPECT_TRUE(torch::equal(shard.slice(0, slice.shard_offset, slice.shard_offset + expected.numel()), expected))
          << kind << " of " << slice.name;
    }
  }
}

TEST(ShardedTrainingBits, StateMovesToAnotherOptimizer) {
  Training first, second;
  for (int step = 1; step <= 2; ++step) first.step(step);
  for (const auto& [kind, shards] : first.optimizer.state()) {
    for (std::size_t b = 0; b < shards.size(); ++b) second.optimizer.state().at(kind)[b].copy_(shards[b]);
  }
  second.optimizer.set_updates(first.optimizer.updates(), first.optimizer.ema_updates());
  second.optimizer.publish_weights();
  for (int step = 3; step <= 4; ++step) {
    first.step(step);
    second.step(step);
  }
  EXPECT_TRUE(torch::equal(flat_parameters(second.net), flat_parameters(first.net)));
  for (std::size_t b = 0; b < first.optimizer.state().at("ema").size(); ++b) {
    EXPECT_TRUE(torch::equal(second.optimizer.state().at("ema")[b], first.optimizer.state().at("ema")[b]));
  }
}

TEST(ShardedModel, DamagedWeightsAreFoundOnEveryRank) {
  Training training;
  if (test_world().size() == 1) GTEST_SKIP() << "needs another rank";
  if (test_world().rank() == 1) training.net->out->bias.data()[0] += 1;
  try {
    training.model.compare_parameters();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::timeout);
    EXPECT_NE(std::string(error.what()).find("trainer 1"), std::string::npos);
  }
}

TEST(ShardedModel, ViewsKeepShapeAndMemoryOrder) {
  Training training;
  const auto& weight = training.net->conv->weight;
  EXPECT_TRUE(weight.is_contiguous(torch::MemoryFormat::ChannelsLast));
  EXPECT_EQ(weight.grad().strides(), weight.strides());
  EXPECT_EQ(weight.sizes(), (std::vector<std::int64_t>{8, 3, 3, 3}));
  bool flagged = false;
  for (const auto& spec : training.model.layout().parameters)
    flagged |= spec.name == "conv.weight" && spec.channels_last;
  EXPECT_TRUE(flagged);
}

TEST(ShardedModel, AGradientOutsideItsBucketIsABug) {
  Training training;
  training.net->zero_grad();  // sets gradients to none
  EXPECT_THROW(training.model.reduce_gradients(1.0), Error);
}

}  // namespace
}  // namespace millrace
