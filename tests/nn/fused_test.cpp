#include "millrace/nn/fused.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <cstdio>
#include <memory>
#include <string_view>
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
  const auto time = torch::randn({3, 50}).requires_grad_();
  expect_equal([&] { return norm->activated(Activation::silu, x, time); }, {x, time, norm->weight, norm->bias});
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
    const auto [sum, normed] = norm->add_norm(x, residual);
    return torch::stack({sum, 0.5 * normed});
  };
  expect_equal(sum_and_norm, {x, residual, norm->weight, norm->bias});
}

// What else x is used for takes the x that the norm gives.
TEST(FusedKernels, OfNormsBesideWhatElseTheirInputIsUsedForAsOfLibTorch) {
  torch::manual_seed(5);
  auto group_norm = random_weights(GroupNorm(5, 50, 1e-5));
  auto layer_norm = random_weights(LayerNorm(70, 1e-5));
  const auto x = torch::randn({3, 50, 7, 9}).contiguous(channels_last).requires_grad_();
  const auto tokens = torch::randn({2, 11, 70}).requires_grad_();
  const auto sum = [](const std::pair<torch::Tensor, torch::Tensor>& both) { return both.first.sin() + both.second; };
  expect_equal([&] { return sum(group_norm->beside(x)); }, {x, group_norm->weight, group_norm->bias});
  expect_equal([&] { return sum(group_norm->activated_beside(Activation::silu, x)); },
               {x, group_norm->weight, group_norm->bias});
  expect_equal([&] { return sum(group_norm->activated_beside(Activation::relu, x)); },
               {x, group_norm->weight, group_norm->bias});
  expect_equal([&] { return sum(layer_norm->beside(tokens)); }, {tokens, layer_norm->weight, layer_norm->bias});
}

TEST(FusedKernels, OfConvolutionsBiasesAsOfLibTorch) {
  torch::manual_seed(6);
  auto norm = random_weights(GroupNorm(4, 24, 1e-5));
  const auto x = torch::randn({2, 16, 6, 5}).contiguous(channels_last).requires_grad_();
  const auto time = torch::randn({2, 24}).requires_grad_();
  const auto residual = torch::randn({2, 24, 6, 5}).contiguous(channels_last).requires_grad_();
  for (const std::int64_t kernel : {1, 3}) {
    auto conv = random_weights(Conv2d(16, 24, kernel, 1, kernel / 2));
    place(*conv, torch::kCPU, torch::kFloat32, /*channels_last=*/true);
    const std::vector<torch::Tensor> inputs = {x, conv->weight, conv->bias};
    expect_equal([&] { return conv(x); }, inputs);
    expect_equal([&] { return conv(x.contiguous()); }, inputs);
    expect_equal([&] { return conv->plus(x, [&] { return residual; }); }, {x, residual, conv->weight, conv->bias});
    expect_equal([&] { return conv->plus(x, [&] { return residual.contiguous(); }); },
                 {x, residual, conv->weight, conv->bias});
    for (const auto activation : {Activation::silu, Activation::relu}) {
      const auto through_norm = [&](const torch::Tensor& time) {
        const auto [y, bias] = conv->before_norm(x);
        return norm->activated(activation, y, time, bias);
      };
      expect_equal([&] { return through_norm(time); }, {x, time, conv->weight, conv->bias, norm->weight, norm->bias});
      expect_equal([&] { return through_norm({}); }, inputs);
    }
  }
  auto strided = random_weights(Conv2d(16, 24, 3, 2, 1));
  expect_equal([&] { return strided(x); }, {x, strided->weight, strided->bias});
}

TEST(FusedKernels, OfMatrixProductsBiasesAsOfLibTorch) {
  torch::manual_seed(7);
  auto linear = random_weights(Linear(30, 22));
  for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{4, 30}, {2, 9, 30}, {2, 3, 5, 30}}) {
    const auto x = torch::randn(sizes).requires_grad_();
    expect_equal([&] { return linear(x); }, {x, linear->weight, linear->bias});
  }
}

TEST(FusedKernels, OfSeveralLayersForOneInputAsOfLibTorch) {
  torch::manual_seed(8);
  Linear first(30, 22, false), second(30, 9, false), with_bias(30, 4);
  for (auto* layer : {&first, &second, &with_bias}) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : (*layer)->parameters()) parameter.normal_();
  }
  const auto x = torch::randn({2, 9, 30}).requires_grad_();
  const auto joined = [&](const std::vector<LinearImpl*>& layers) {
    const auto parts = LinearImpl::together(x, layers);
    EXPECT_EQ(parts.size(), layers.size());
    return torch::cat({parts[0].sin(), parts.back()}, -1);
  };
  expect_equal([&] { return joined({first.get(), second.get()}); }, {x, first->weight, second->weight});
  expect_equal([&] { return joined({first.get(), with_bias.get()}); }, {x, first->weight, with_bias->bias});
  expect_equal([&] { return joined({second.get()}); }, {x, second->weight});
}

// A frozen bias, an input that wants no gradient, no gradients at all.
TEST(FusedKernels, MakeOnlyTheGradientsThatAreWanted) {
  torch::manual_seed(9);
  use_fused_kernels(FusedKernels::everywhere);
  auto conv = random_weights(Conv2d(8, 8, 3, 1, 1));
  auto linear = random_weights(Linear(8, 8));
  auto norm = random_weights(GroupNorm(4, 8, 1e-5));
  const auto image = torch::randn({2, 8, 5, 5}).contiguous(channels_last), tokens = torch::randn({2, 5, 8});
  const auto compute = [&] {
    const auto [x, y] = norm->beside(image);
    return conv->plus(x, [&, &y = y] { return y; }).sum() + linear(tokens).sum();
  };
  compute().backward();
  EXPECT_TRUE(conv->bias.grad().defined());
  EXPECT_TRUE(torch::allclose(linear->bias.grad(), torch::full({8}, 10.f)));
  for (auto* bias : {&conv->bias, &linear->bias}) {
    bias->mutable_grad().reset();
    bias->set_requires_grad(false);
  }
  compute().backward();
  EXPECT_FALSE(conv->bias.grad().defined());
  EXPECT_FALSE(linear->bias.grad().defined());
  EXPECT_TRUE(conv->weight.grad().defined());
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(compute().requires_grad());
  use_fused_kernels(FusedKernels::by_device);
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
    layer_norm->add_norm(tokens, tokens);
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
  EXPECT_EQ(counted([&] { layer_norm->add_norm(tokens, turned); }), std::pair(0, 1));
  use_fused_kernels(FusedKernels::by_device);
}

int added_biases = 0, bias_gradients = 0;  // by our kernels

std::unique_ptr<at::ObserverContext> count_biases(const at::RecordFunction& operation) {
  const std::string_view name(operation.name());
  added_biases += name == "millrace::add_bias";
  bias_gradients += name == "millrace::bias_gradient";
  return nullptr;
}

// LibTorch would compute the same, and nobody would be told.
TEST(FusedKernels, AreCalledForBiasesWhereInputsSuitThem) {
  torch::manual_seed(10);
  use_fused_kernels(FusedKernels::everywhere);
  auto conv = random_weights(Conv2d(8, 8, 3, 1, 1)), one_by_one = random_weights(Conv2d(8, 8, 1));
  for (auto* const layer : {&conv, &one_by_one}) place(**layer, torch::kCPU, torch::kFloat32, /*channels_last=*/true);
  auto linear = random_weights(Linear(8, 8));
  const auto image = torch::randn({2, 8, 5, 5}).contiguous(channels_last), tokens = torch::randn({2, 5, 8});
  const auto counted = [](const auto& compute) {
    added_biases = bias_gradients = 0;
    const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(&count_biases));
    compute().sum().backward();
    at::removeCallback(handle);
    return std::pair(added_biases, bias_gradients);
  };
  EXPECT_EQ(counted([&] { return conv(image); }), std::pair(1, 1));
  EXPECT_EQ(counted([&] { return conv->plus(image, [&] { return image; }); }), std::pair(1, 1));
  EXPECT_EQ(counted([&] { return one_by_one(image); }), std::pair(0, 1)) << "the matrix product adds it";
  EXPECT_EQ(counted([&] { return linear(tokens); }), std::pair(0, 1)) << "the matrix product adds it";
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
  auto conv = random_weights(Conv2d(8, 8, 3, 1, 1));
  const auto exact = at::conv2d(image, conv->weight, conv->bias, 1, 1);
  EXPECT_TRUE(torch::allclose(conv(pixelwise), exact, 1e-5, 1e-5));
  EXPECT_TRUE(torch::allclose(conv->plus(pixelwise, [&] { return pixelwise; }), exact + image, 1e-5, 1e-5));
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
  EXPECT_TRUE(prefers_channels_last(torch::kCUDA, torch::kFloat32, /*kernels_are_on=*/false));
}

}  // namespace
}  // namespace millrace::nn
