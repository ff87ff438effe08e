#include "millrace/nn/fused.h"

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <cstdio>
#include <utility>

#include "millrace/nn/activation.h"
#include "millrace/nn/layers.h"

namespace millrace::nn {
namespace {

constexpr auto channels_last = torch::MemoryFormat::ChannelsLast;

// The output of `compute` and the gradients of `inputs` of the sum of its squares, by the kernels' twins or LibTorch.
template <class Compute>
std::vector<torch::Tensor> results(FusedKernels where, const Compute& compute,
                                   const std::vector<torch::Tensor>& inputs) {
  use_fused_kernels(where);
  const auto output = compute();
  auto all = torch::autograd::grad({output.square().sum()}, inputs);
  all.push_back(output.detach());
  use_fused_kernels(FusedKernels::by_device);
  return all;
}

double largest(const torch::Tensor& tensor) {
  return tensor.abs().max().item<double>();
}

template <class Compute>
void expect_equal(const Compute& compute, const std::vector<torch::Tensor>& inputs) {
  const auto fused = results(FusedKernels::everywhere, compute, inputs),
             separate = results(FusedKernels::nowhere, compute, inputs);
  for (std::size_t i = 0; i < fused.size(); ++i) {
    EXPECT_LT(largest(fused[i] - separate[i]), 1e-5 * largest(separate[i])) << i;
  }
}

template <class Norm>
Norm random_weights(Norm norm) {
  const torch::NoGradGuard no_grad;
  norm->weight.normal_();
  norm->bias.normal_();
  return norm;
}

TEST(FusedKernels, OfGroupNormAsOfLibTorch) {
  torch::manual_seed(1);
  auto norm = random_weights(GroupNorm(5, 50, 1e-5));
  const auto x = torch::randn({3, 50, 7, 9}).contiguous(channels_last).requires_grad_();
  const auto shift = torch::randn({3, 50}).requires_grad_();
  expect_equal([&] { return norm->activated(Activation::silu, x, shift); }, {x, shift, norm->weight, norm->bias});
  expect_equal([&] { return norm->activated(Activation::silu, x); }, {x, norm->weight, norm->bias});
  expect_equal([&] { return norm(x); }, {x, norm->weight, norm->bias});
}

TEST(FusedKernels, OfLayerNormAndGegluAsOfLibTorch) {
  torch::manual_seed(2);
  auto norm = random_weights(LayerNorm(70, 1e-5));
  const auto x = torch::randn({2, 11, 70}).requires_grad_();
  expect_equal([&] { return norm(x); }, {x, norm->weight, norm->bias});
  expect_equal([&] { return geglu(x); }, {x});
  auto widen = random_weights(Linear(70, 48));
  expect_equal([&] { return widen->geglu(x); }, {x, widen->weight, widen->bias});
  const auto residual = torch::randn({2, 11, 70}).requires_grad_();
  const auto sum_and_norm = [&] {
    const auto [sum, normed] = norm->of_sum(x, residual);
    return torch::stack({sum, 0.5 * normed});
  };
  expect_equal(sum_and_norm, {x, residual, norm->weight, norm->bias});
}

struct Counted {
  int by_own = 0, by_libtorch = 0;
};

Counted norms_so_far() {
  Counted counted;
  std::sscanf(norm_kernels().c_str(), "%d by our kernels, %d by LibTorch's", &counted.by_own, &counted.by_libtorch);
  return counted;
}

TEST(FusedKernels, AreCountedBesideWhatLibTorchHadToDo) {
  torch::manual_seed(4);
  auto norm = random_weights(GroupNorm(4, 8, 1e-5));
  auto layer_norm = random_weights(LayerNorm(8, 1e-5));
  auto linear = random_weights(Linear(8, 6));
  const auto image = torch::randn({2, 8, 5, 5}), pixelwise = image.contiguous(channels_last);
  const auto tokens = torch::randn({2, 3, 8}), turned = torch::randn({2, 8, 3}).transpose(1, 2);
  const auto counted = [&](const auto& compute) {
    const auto before = norms_so_far();
    compute();
    const auto after = norms_so_far();
    return std::pair(after.by_own - before.by_own, after.by_libtorch - before.by_libtorch);
  };
  const auto suiting = [&] {
    norm(pixelwise);
    norm->activated(Activation::silu, pixelwise);
    layer_norm(tokens);
    layer_norm->of_sum(tokens, tokens);
    geglu(tokens);
    linear->geglu(turned);
  };
  const auto others = [&] {
    norm(image);
    norm->activated(Activation::silu, image);
    layer_norm(turned);
    geglu(turned);
  };
  EXPECT_EQ(counted(suiting), std::pair(0, 0)) << "they are off on this device";
  use_fused_kernels(FusedKernels::everywhere);
  EXPECT_EQ(counted(suiting), std::pair(6, 0));
  EXPECT_EQ(counted(others), std::pair(0, 4));
  EXPECT_GE(counted([&] { layer_norm->of_sum(tokens, turned); }).second, 1);
  use_fused_kernels(FusedKernels::by_device);
}

// Other layouts and activations are LibTorch's; encoders run without autograd.
TEST(FusedKernels, LeaveTheRestToLibTorch) {
  torch::manual_seed(3);
  auto norm = random_weights(GroupNorm(4, 8, 1e-5));
  const auto image = torch::randn({2, 8, 5, 5}), pixelwise = image.contiguous(channels_last);
  use_fused_kernels(FusedKernels::everywhere);
  const torch::InferenceMode inference;
  const auto fused = norm->activated(Activation::silu, pixelwise);
  EXPECT_TRUE(fused.is_contiguous(channels_last));
  EXPECT_TRUE(torch::allclose(fused, norm->activated(Activation::silu, image), 1e-5, 1e-6));
  EXPECT_TRUE(torch::allclose(norm->activated(Activation::relu, pixelwise), at::relu(norm(image)), 1e-5, 1e-6));
  use_fused_kernels(FusedKernels::by_device);
}

// LibTorch's group norm is slow on such images on CPUs. GPUs' tensor cores want them whoever computes norms.
TEST(FusedKernels, DecideOnCpusWhetherImagesLieChannelsLast) {
  const auto is_channels_last = [](FusedKernels where, torch::Dtype dtype, std::optional<bool> setting) {
    use_fused_kernels(where);
    Conv2d layer(8, 8, 3);
    place(*layer, torch::kCPU, dtype, setting);
    use_fused_kernels(FusedKernels::by_device);
    return layer->weight.is_contiguous(channels_last);
  };
  using enum FusedKernels;
  EXPECT_TRUE(is_channels_last(by_device, torch::kFloat32, std::nullopt));
  EXPECT_TRUE(is_channels_last(everywhere, torch::kFloat32, std::nullopt));
  EXPECT_FALSE(is_channels_last(nowhere, torch::kFloat32, std::nullopt));
  EXPECT_FALSE(is_channels_last(by_device, torch::kBFloat16, std::nullopt));
  EXPECT_TRUE(is_channels_last(nowhere, torch::kFloat32, true));
  EXPECT_FALSE(is_channels_last(by_device, torch::kFloat32, false));
  EXPECT_TRUE(has_own_kernels(torch::kCUDA, torch::kFloat32, /*kernels_are_on=*/false));
}

}  // namespace
}  // namespace millrace::nn
