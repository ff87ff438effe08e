#pragma once
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/utils.h>

#include "devices.h"
#include "millrace/nn/layers.h"
#include "millrace/parallel/sharded_optimizer.h"
#include "millrace/parallel/storage_order.h"
#include "mpi_devices.h"

// A small net that all ranks of a test train on their shares of a batch.
namespace millrace {

inline constexpr int global_batch = 16;

struct SmallNetImpl : torch::nn::Module {
  SmallNetImpl() : conv(3, 8, 3, 1, 1), norm(2, 8, 1e-5), out(8 * 4 * 4, 5) {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("out", out);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.normal_(parameter.dim() == 1 ? 0.5 : 0, 0.15);
    conv->weight.set_data(conv->weight.detach().contiguous(torch::MemoryFormat::ChannelsLast));
  }
  torch::Tensor forward(const torch::Tensor& image) { return out(torch::silu(norm(conv(image))).flatten(1)); }
  nn::Conv2d conv;
  nn::GroupNorm norm;
  nn::Linear out;
};
TORCH_MODULE(SmallNet);

inline SmallNet make_net(int seed, torch::Dtype dtype = torch::kFloat32, torch::Device device = torch::kCPU) {
  torch::manual_seed(seed);
  SmallNet net;
  net->to(device, dtype);
  return net;
}

struct Batch {
  torch::Tensor image, target;
};

inline Batch batch_of_step(int step) {
  torch::manual_seed(1000 + step);
  return {torch::randn({global_batch, 3, 4, 4}), torch::randn({global_batch, 5}) * 3};
}

// The part of the mean loss that samples [begin, end) of the global batch contribute.
inline torch::Tensor loss_of(SmallNet& net, const Batch& batch, int begin, int end) {
  const auto& weight = net->out->weight;
  const auto output = net(batch.image.slice(0, begin, end).to(weight.device(), weight.scalar_type()));
  const auto target = batch.target.slice(0, begin, end).to(weight.device());
  return (output.to(torch::kFloat32) - target).square().sum() / global_batch;
}

struct Settings {
  Strategy strategy = Strategy::shard_grad_op;
  double bucket_mb = 0.001;
  std::optional<double> clip = 1.0;
  torch::Dtype dtype = torch::kFloat32;
  int accumulation = 2;  // micro-batches of a step, on each rank
  MakeCollectives make_collectives = {};
  config::Auto<ReduceDtype> reduce_dtype = {};
  torch::Device device = torch::kCPU;
};

inline OptimConfig optim_config(std::optional<double> clip) {
  OptimConfig config;
  config.lr = 3e-3;
  config.betas = {0.8, 0.97};
  config.eps = 1e-4;
  config.weight_decay = 0.1;
  config.clip = clip;
  return config;
}

inline const EmaConfig ema_config{.enabled = true, .decay = 0.8, .warmup = true};

// A net and what trains it on all ranks of the test.
struct Training {
  explicit Training(const Settings& settings = {})
      : net(make_net(1 + test_world().rank(), settings.dtype,
                     settings.device)),  // ranks differ until rank 0's weights are shared
        parallel{.strategy = settings.strategy,
                 .shard_size = {std::min(2, test_world().size())},
                 .reduce_dtype = settings.reduce_dtype,
                 .bucket_mb = settings.bucket_mb},
        accumulation(settings.accumulation),
        plan(plan_shards(parallel, test_world().hosts())),
        model(*net, parameter_names(*net), plan, parallel, test_world().group(), ShardedModel::Start::of_rank_0,
              settings.make_collectives),
        optim(optim_config(settings.clip)),
        optimizer(model, optim, ema_config) {}

  // Gradients of the mean loss.
  void gradients(int number) {
    const int share = global_batch / test_world().size(), begin = test_world().rank() * share;
    const auto batch = batch_of_step(number);
    model.begin_gradients(accumulation);
    for (int i = 0; i < accumulation; ++i)
      loss_of(net, batch, begin + share * i / accumulation, begin + share * (i + 1) / accumulation).backward();
    model.finish_gradients();
  }

  double step(int number) {
    gradients(number);
    const double norm = model.gradient_norm();
    optimizer.step(optim.lr, clip_factor(optim.clip, norm));
    return norm;
  }

  // All weights in the net's order, from the shards of all ranks; on the host.
  torch::Tensor weights() const {
    std::map<std::string, std::vector<double>> whole;
    for (const auto& spec : model.layout().parameters) whole[spec.name].resize(spec.elements());
    if (plan.replica_of(test_world().rank()) == 0) {
      for (const auto& slice : slices_of_shard(model.layout(), model.shard())) {
        const auto elements = model.parameter_shard(slice.bucket)
                                  .slice(0, slice.shard_offset, slice.shard_offset + slice.end - slice.begin)
                                  .to(torch::kCPU, torch::kFloat64);
        std::copy_n(elements.data_ptr<double>(), elements.numel(), whole.at(slice.name).begin() + slice.begin);
      }
    }
    std::vector<torch::Tensor> all;
    for (const auto& spec : model.layout().parameters) {
      auto& values = whole.at(spec.name);
      test_world().group().all_reduce_sum(std::span(values));
      const auto flat = torch::tensor(values, torch::kFloat64).to(torch::kFloat32);
      all.push_back(from_storage_order(flat, spec.shape, spec.channels_last).reshape({-1}));
    }
    return torch::cat(all);
  }

  // Whether a trainer's shard holds a part of this parameter.
  bool owns(const std::string& name, int trainer) const {
    const auto slices = slices_of_shard(model.layout(), plan.shard_of(trainer));
    return std::ranges::any_of(slices, [&](const auto& slice) { return slice.name == name; });
  }

  SmallNet net;
  ParallelConfig parallel;
  int accumulation;
  ShardPlan plan;
  ShardedModel model;
  OptimConfig optim;
  ShardedAdamW optimizer;
};

// On the host.
inline torch::Tensor flat_parameters(const SmallNet& net) {
  std::vector<torch::Tensor> all;
  for (const auto& parameter : net->parameters()) all.push_back(parameter.detach().cpu().reshape({-1}));
  return torch::cat(all).clone();
}

inline constexpr Strategy strategies[] = {Strategy::ddp, Strategy::shard_grad_op, Strategy::full_shard,
                                          Strategy::hybrid};

inline void expect_close(const torch::Tensor& actual, const torch::Tensor& expected, double tolerance) {
  EXPECT_LT((actual - expected).abs().max().item<double>(), tolerance);
}

inline double relative_error(const torch::Tensor& actual, const torch::Tensor& expected) {
  const double size = expected.norm().item<double>();  // 0 of a shard that is padding
  return (actual - expected).norm().item<double>() / std::max(size, 1e-30);
}

}  // namespace millrace
