// What the sum of many micro-batches adds to the gradients of a U-Net that computes in bfloat16.
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <map>
#include <string>

#include "millrace/models/initialize.h"
#include "millrace/models/presets.h"
#include "millrace/parallel/sharded_model.h"
#include "millrace/parallel/storage_order.h"
#include "mpi_world.h"

namespace millrace {
namespace {

torch::Tensor loss_of_sample(UNet2DConditionModel& unet, int sample) {
  torch::manual_seed(sample);
  const auto& config = unet->config();
  const auto noisy = torch::randn({1, config.in_channels, 8, 8}), target = torch::randn({1, config.out_channels, 8, 8});
  const auto text = torch::randn({1, 77, config.cross_attention_dim.front()});
  const auto timestep = torch::randint(1000, {1}, torch::kInt64);
  const auto prediction = unet(noisy.to(torch::kBFloat16), timestep, text.to(torch::kBFloat16));
  return (prediction.to(torch::kFloat32) - target).square().mean();
}

// The error of `sum` as a share of `exact`.
double share(const torch::Tensor& sum, const torch::Tensor& exact) {
  return ((sum.to(torch::kFloat64) - exact).norm() / exact.norm()).item<double>();
}

UNet2DConditionModel unet_in_bfloat16() {
  auto unet = make_unet(preset_configs(Preset::tiny).unet, /*seed=*/1);
  unet->to(torch::kBFloat16);
  return unet;
}

// The gradients of each micro-batch apart: added in float64, and as LibTorch does, in the type of the parameters.
class Apart {
 public:
  void add_up_to(int micro_batches) {
    for (; added_ < micro_batches; ++added_) {
      unet_->zero_grad();
      loss_of_sample(unet_, added_).backward();
      for (const auto& parameter : unet_->named_parameters()) {
        const auto& gradient = parameter.value().grad();
        auto &sum = exact[parameter.key()], &in_bfloat16 = rounded[parameter.key()];
        sum = sum.defined() ? sum + gradient.to(torch::kFloat64) : gradient.to(torch::kFloat64);
        in_bfloat16 = in_bfloat16.defined() ? in_bfloat16 + gradient : gradient.clone();
      }
    }
  }

  std::map<std::string, torch::Tensor> exact, rounded;

 private:
  UNet2DConditionModel unet_ = unet_in_bfloat16();
  int added_ = 0;
};

struct Worst {
  double ours = 0, in_bfloat16 = 0;  // of all parameters
};

// Against the sums of as many micro-batches apart.
Worst worst_of(int micro_batches, const Apart& apart) {
  auto unet = unet_in_bfloat16();
  const ParallelConfig parallel{.strategy = Strategy::ddp};
  ShardedModel model(*unet, execution_order(*unet), plan_shards(parallel, test_world().hosts()), parallel,
                     test_world().group());
  model.begin_gradients(micro_batches);
  for (int i = 0; i < micro_batches; ++i) loss_of_sample(unet, i).backward();
  model.finish_gradients();

  Worst worst;
  const auto& layout = model.layout();
  for (int b = 0; b < model.buckets(); ++b)
    for (const auto& placement : layout.buckets[b].placements) {
      const auto& spec = layout.parameters[placement.parameter];
      const auto sum = view_into(model.gradient_shard(b), placement, spec);
      worst.ours = std::max(worst.ours, share(sum, apart.exact.at(spec.name)));
      worst.in_bfloat16 = std::max(worst.in_bfloat16, share(apart.rounded.at(spec.name), apart.exact.at(spec.name)));
    }
  return worst;
}

TEST(Accumulation, AddsNothingToGradientsInBFloat16) {
  constexpr int micro_batches = 64;
  Apart apart;
  apart.add_up_to(micro_batches);
  const auto worst = worst_of(micro_batches, apart);
  EXPECT_LT(worst.ours, 1e-5);
  EXPECT_GT(worst.in_bfloat16, 1e-2);  // what the test would find
}

}  // namespace
}  // namespace millrace
