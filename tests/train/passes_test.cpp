// Steps of training by CUDA graphs, against the same steps kernel by kernel.
#include <fmt/format.h>
#include <torch/utils.h>

#include <optional>

#include "devices.h"
#include "millrace/core/error.h"
#include "millrace/nn/layers.h"
#include "millrace/parallel/sharded_optimizer.h"
#include "millrace/train/passes.h"
#include "mpi_world.h"
#include "parcels/encodings.h"
#include "small_unet.h"

namespace millrace {
namespace {

// How each step's samples are cut.
using Parts = std::vector<std::int64_t>;

struct Trained {
  std::vector<torch::Tensor> weights;
  std::vector<double> losses;
};

struct Case {
  torch::Device device;
  torch::Dtype dtype;
  Parts parts;
  bool recomputes;  // gradient checkpointing
};

// Seven steps of the small U-Net from the same start, whose parts go through `run`. What has been recorded is forgotten
// after the fourth, as when training goes back.
template <class Run>
Trained train(const Case& c, bool by_graphs, Run run) {
  const auto& [device, dtype, parts, recomputes] = c;
  auto unet = test::make_small_unet();
  nn::place(*unet, device, dtype);
  unet->set_gradient_checkpointing(recomputes);
  const OptimConfig optim{.lr = 1e-3};
  ShardedModel model(*unet, execution_order(*unet), {}, {}, Group());
  ShardedAdamW optimizer(model, optim, {});
  std::optional<Passes> passes;
  const Passes::LossOf loss_of = [&](const Passes::Tensors& in) {
    return (unet->forward(in[0], in[1], in[2]).to(torch::kFloat32) - in[3]).square().mean() /
           static_cast<double>(c.parts.size());
  };
  torch::manual_seed(7);
  Trained trained;
  for (int step = 0; step < 7; ++step) {
    if (step % 4 == 0) passes.emplace(model, by_graphs);
    model.begin_gradients(static_cast<int>(parts.size()));
    double sum = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::vector<std::int64_t> image = {parts[i], 4, test::latent_side, test::latent_side};
      const Passes::Tensors inputs = {torch::randn(image).to(device, dtype),
                                      torch::randint(1000, {parts[i]}).to(torch::kInt64).to(device),
                                      torch::randn({parts[i], test::text_tokens, test::text_width}).to(device, dtype),
                                      torch::randn(image).to(device)};
      const auto kind = step == 2 ? Passes::Kind::by_kernels : i == 0 ? Passes::Kind::first : Passes::Kind::later;
      sum += run(*passes, kind, inputs, loss_of);
    }
    trained.losses.push_back(sum);
    model.finish_gradients();
    optimizer.step(optim.lr, clip_factor(1.0, model.gradient_norm()));
  }
  for (int b = 0; b < model.buckets(); ++b) trained.weights.push_back(model.parameter_shard(b).clone().cpu());
  return trained;
}

Trained train_by_kernels(const Case& c) {
  const auto run = [](Passes&, Passes::Kind, const Passes::Tensors& inputs, const Passes::LossOf& loss_of) {
    const auto loss = loss_of(inputs);
    loss.backward();
    return loss.item<double>();
  };
  return train(c, /*by_graphs=*/false, run);
}

// `ahead`: calls that say that the device has work.
Trained train_by_passes(const Case& c, bool by_graphs, int& ahead) {
  const auto run = [&](Passes& passes, Passes::Kind kind, const auto& inputs, const Passes::LossOf& loss_of) {
    return passes.run(kind, inputs, loss_of, [&] { ++ahead; }).template item<double>();
  };
  return train(c, by_graphs, run);
}

// The same bits each time, or none of this could be compared to the bit.
class Deterministic {
 public:
  Deterministic() { set(true); }
  ~Deterministic() { set(false); }

 private:
  static void set(bool deterministic) {
    at::globalContext().setSDPUseCuDNN(!deterministic);
    at::globalContext().setDeterministicCuDNN(deterministic);
    at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/true);
  }
};

using PassesOnDevice = test::OnDevice;
MILLRACE_ON_DEVICES(PassesOnDevice);

// On a GPU the second and all later passes of a size are replays, of two graphs where a step has several, but for those
// of a step that is to go by kernels, and for the last part of some, which is smaller.
TEST_P(PassesOnDevice, GiveTheBitsOfForwardAndBackward) {
  const auto on = device();
  const Deterministic deterministic;
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16})
    for (const bool recomputes : {false, true})
      for (const Parts& parts : {Parts{4}, Parts{3, 3}, Parts{3, 3, 3, 2}}) {
        const Case c{on, dtype, parts, recomputes};
        const auto text = fmt::format("{} parts of a step, {}{}", parts.size(), dtype_name(dtype),
                                      recomputes ? ", computed anew for backward" : "");
        const auto expected = train_by_kernels(c);
        int ahead = 0;
        const auto trained = train_by_passes(c, /*by_graphs=*/is_cuda(), ahead);
        EXPECT_EQ(trained.losses, expected.losses) << text;
        for (std::size_t b = 0; b < expected.weights.size(); ++b)
          EXPECT_TRUE(torch::equal(trained.weights[b], expected.weights[b])) << text;
        EXPECT_EQ(ahead, 7 * std::ssize(parts)) << text;
      }
}

// Reading a number makes the host wait for the GPU, which no graph repeats. The last test of this program: LibTorch's
// allocator is of no use afterwards.
TEST_P(PassesOnDevice, WhatCannotBeRecordedIsToldWithTheKey) {
  if (!is_cuda()) GTEST_SKIP() << "a CPU records nothing";
  const auto on = device();
  nn::Linear net(3, 2);
  net->to(on);
  ShardedModel model(*net, parameter_names(*net), {}, {}, Group());
  Passes passes(model, /*by_graphs=*/true);
  const auto loss_of = [&](const Passes::Tensors& in) {
    const auto loss = net(in[0]).square().sum();
    return loss * (loss.item<double>() > 0 ? 1 : 2);
  };
  const auto pass = [&] {
    model.begin_gradients(1);
    passes.run(Passes::Kind::first, {torch::ones({4, 3}, on)}, loss_of, [] {});
    model.finish_gradients();
  };
  pass();
  try {
    pass();
    ADD_FAILURE() << "a number was read while a graph was recorded";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage);
    EXPECT_EQ(error.hint().substr(0, 23), "model.cuda_graphs=false");
  }
}

// Of a step's passes, with all ranks of the test as trainers.
std::vector<Passes::Kind> kinds_of(Strategy strategy, int turns) {
  nn::Linear net(3, 2);
  const ParallelConfig parallel{.strategy = strategy};
  ShardedModel model(*net, parameter_names(*net), plan_shards(parallel, test_world().hosts()), parallel,
                     test_world().group());
  const Passes passes(model, /*by_graphs=*/false);
  std::vector<Passes::Kind> kinds;
  for (int turn = 0; turn < turns; ++turn) kinds.push_back(passes.kind_of(turn, turns));
  return kinds;
}

// No graph repeats what trainers send each other.
TEST(Passes, GoByKernelsWhereTrainersTalk) {
  using Kinds = std::vector<Passes::Kind>;
  using enum Passes::Kind;
  if (test_world().size() == 1) {
    for (const auto strategy : {Strategy::ddp, Strategy::shard_grad_op, Strategy::full_shard}) {
      EXPECT_EQ(kinds_of(strategy, 3), (Kinds{first, later, later}));
      EXPECT_EQ(kinds_of(strategy, 1), (Kinds{first}));
    }
    return;
  }
  for (const auto strategy : {Strategy::ddp, Strategy::shard_grad_op}) {
    EXPECT_EQ(kinds_of(strategy, 3), (Kinds{by_kernels, later, by_kernels}));
    EXPECT_EQ(kinds_of(strategy, 1), (Kinds{by_kernels}));
  }
  EXPECT_EQ(kinds_of(Strategy::full_shard, 3), (Kinds{by_kernels, by_kernels, by_kernels}));
}

TEST(Passes, OfACpuAreNoGraphs) {
  nn::Linear net(3, 2);
  ShardedModel model(*net, parameter_names(*net), {}, {}, Group());
  EXPECT_THROW(Passes(model, /*by_graphs=*/true), Error);
}

}  // namespace
}  // namespace millrace
