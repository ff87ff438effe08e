#include <torch/autograd.h>
#include "millrace/kernels/ops.h"
#include "testing.h"

namespace millrace::kernels::group_norm_silu_tests {
namespace {

using torch::Tensor;
using GroupNormSilu = OnDevice;

struct Case {
  std::int64_t batch, channels, height, width, groups;
  bool with_time = true, with_silu = true;
  double mean = 0;
  bool with_x_bias = false, with_rest = false;
};

std::string describe(const Case& c) {
  return "B" + std::to_string(c.batch) + " C" + std::to_string(c.channels) + " " + std::to_string(c.height) + "x" +
         std::to_string(c.width) + " G" + std::to_string(c.groups) + (c.with_time ? " time" : "") +
         (c.with_silu ? " silu" : "") + (c.with_x_bias ? " x_bias" : "") + (c.with_rest ? " rest" : "") + " mean " +
         std::to_string(c.mean);
}

struct Inputs {
  Tensor x, time, x_bias, weight, bias, y_grad;
  Tensor rest_grad;  // of what else x is used for
  std::vector<Tensor> leaves() const { return {x, time, x_bias, weight, bias}; }
};

// float64; x is rounded to `type` once, so that all ways start from the same numbers.
Inputs make_inputs(const Case& c, torch::Dtype type) {
  const auto rounded = [&](const Tensor& tensor) { return tensor.to(type).to(torch::kFloat64); };
  const std::vector<std::int64_t> sizes{c.batch, c.channels, c.height, c.width};
  return {rounded(torch::randn(sizes) * (1 + 0.5 * torch::rand({c.channels, 1, 1})) + c.mean),
          c.with_time ? rounded(torch::randn({c.batch, c.channels})) : Tensor(),
          c.with_x_bias ? rounded(torch::randn({c.channels})) : Tensor(),
          rounded(1 + 0.3 * torch::randn({c.channels})),
          rounded(0.3 * torch::randn({c.channels})),
          rounded(torch::randn(sizes)),
          c.with_rest ? rounded(torch::randn(sizes)) : Tensor()};
}

Inputs on(torch::Device device, const Inputs& from, torch::Dtype type, torch::Dtype parameter_type) {
  const auto channels_last = torch::MemoryFormat::ChannelsLast;
  return {leaf(from.x.contiguous(channels_last), type, device),
          leaf(from.time, type, device),
          leaf(from.x_bias, parameter_type, device),
          leaf(from.weight, parameter_type, device),
          leaf(from.bias, parameter_type, device),
          from.y_grad.to(device, type).contiguous(channels_last),
          from.rest_grad.defined() ? from.rest_grad.to(device, type).contiguous(channels_last) : Tensor()};
}

// x: what is used beside y.
std::vector<Tensor> outputs_of(const Inputs& inputs, const Tensor& x, const Tensor& y) {
  if (inputs.rest_grad.defined()) {
    torch::autograd::backward({x, y}, {inputs.rest_grad, inputs.y_grad});
  } else {
    y.backward(inputs.y_grad);
  }
  std::vector<Tensor> outputs{y.detach()};
  append_gradients(outputs, inputs.leaves());
  return outputs;
}

constexpr double eps = 1e-5;

Tensor group_norm_silu(const Tensor& x, const Tensor& time, const Tensor& weight, const Tensor& bias,
                       std::int64_t groups) {
  return group_norm_silu_beside(x, time, {}, weight, bias, groups, eps).second;
}

std::vector<Tensor> run_atens(const Inputs& inputs, const Case& c) {
  auto x = inputs.x;
  if (c.with_time) x = x + inputs.time.unsqueeze(-1).unsqueeze(-1);
  if (c.with_x_bias) x = x + inputs.x_bias.view({-1, 1, 1});
  const auto y = at::group_norm(x, c.groups, inputs.weight, inputs.bias, eps);
  return outputs_of(inputs, inputs.x, c.with_silu ? at::silu(y) : y);
}

std::vector<Tensor> run_ours(const Inputs& inputs, const Case& c) {
  const auto [x, y] = group_norm_silu_beside(inputs.x, inputs.time, inputs.x_bias, inputs.weight, inputs.bias, c.groups,
                                             eps, c.with_silu);
  return outputs_of(inputs, x, y);
}

void compare(const Case& c, torch::Dtype type, torch::Dtype parameter_type, torch::Device device) {
  const auto inputs = make_inputs(c, type);
  const auto results =
      Results{run_ours(on(device, inputs, type, parameter_type), c), run_atens(on(device, inputs, type, type), c),
              run_atens(on(torch::kCPU, inputs, torch::kFloat64, torch::kFloat64), c)};
  expect_close(results, type, describe(c));
}

// Channels of the U-Nets of SD 1, SD 2 and SDXL, with those of joined skips, and of the autoencoder.
TEST_P(GroupNormSilu, IsAtensAtTheShapesOfTheNetworks) {
  for (const auto type : all_types) {
    for (const std::int64_t channels : {320, 640, 960, 1280, 1920, 2560}) {
      compare({2, channels, 4, 4, 32}, type, type, device());
      compare({1, channels, 3, 5, 32, false, false}, type, torch::kFloat32, device());
    }
    for (const std::int64_t channels : {128, 256, 512}) compare({1, channels, 9, 7, 32, false}, type, type, device());
  }
}

TEST_P(GroupNormSilu, IsAtensAtOddShapes) {
  for (const auto type : all_types) {
    for (const Case& c : {Case{2, 6, 3, 3, 2},           // 3 channels per group, single elements
                          Case{1, 30, 7, 5, 10},         // the same, in more groups
                          Case{2, 24, 5, 5, 8},          // the same, in vectors that straddle groups
                          Case{2, 40, 6, 7, 8},          // 5 channels per group, in vectors
                          Case{3, 72, 4, 4, 8},          // 9, a vector and one more
                          Case{1, 35, 5, 9, 5},          // 7, single elements
                          Case{65, 32, 2, 2, 8},         // many images
                          Case{65, 320, 2, 2, 32},       // and as many channels as the networks have
                          Case{2, 320, 1, 1, 32},        // one pixel
                          Case{1, 3, 33, 33, 1},         // few channels, one group
                          Case{2, 40, 64, 64, 4},        // many splits
                          Case{1, 16, 61, 67, 4, true},  // a last split that is shorter
                          Case{1, 1040, 2, 3, 13},       // tiles with idle columns
                          Case{2, 1040, 5, 5, 2}})       // more channels per group than a block has threads
      compare(c, type, type, device());
  }
}

// A convolution's bias that the norm adds, and a gradient that comes to x from elsewhere.
TEST_P(GroupNormSilu, AddsABiasAndTheGradientOfTheRest) {
  for (const auto type : all_types)
    for (const bool with_time : {false, true})
      for (const bool with_rest : {false, true})
        for (const auto& [channels, groups] : {std::pair{320, 32}, {35, 5}, {24, 8}}) {
          const bool with_x_bias = with_time || !with_rest;
          compare({3, channels, 5, 7, groups, with_time, with_time, 0, with_x_bias, with_rest}, type, type, device());
        }
}

TEST_P(GroupNormSilu, WithoutAGradientOfItsOwnPassesOnTheRest) {
  const Case c{1, 16, 3, 3, 4};
  const auto inputs = on(device(), make_inputs(c, torch::kFloat32), torch::kFloat32, torch::kFloat32);
  const auto both = group_norm_silu_beside(inputs.x, {}, {}, inputs.weight, inputs.bias, c.groups, eps);
  EXPECT_TRUE(torch::equal(both.first, inputs.x));
  both.first.backward(inputs.y_grad);
  EXPECT_TRUE(torch::equal(inputs.x.grad(), inputs.y_grad));
  EXPECT_FALSE(inputs.weight.grad().defined());
}

// SD 2 at 512 pixels: the first level, the widest joined skip, and the last level of the VAE. Too slow for the twins.
TEST_P(GroupNormSilu, IsAtensAtFullSize) {
  if (is_cpu()) GTEST_SKIP() << "large feature maps are for GPUs";
  for (const auto type : all_types) {
    for (const Case& c : {Case{8, 320, 64, 64, 32}, Case{4, 960, 64, 64, 32}, Case{8, 2560, 16, 16, 32},
                          Case{65, 1280, 8, 8, 32}, Case{1, 128, 512, 512, 32, false}})
      compare(c, type, type, device());
  }
}

// 65792 pixels in 129 splits.
TEST_P(GroupNormSilu, FoldsManySplits) {
  compare({1, 8, 256, 257, 2}, torch::kFloat32, torch::kFloat32, device());
}

TEST_P(GroupNormSilu, ALargeMeanCostsNoDigits) {
  for (const double mean : {100., -100.}) {
    for (const auto type : {torch::kFloat32, torch::kFloat16}) {
      compare({2, 320, 16, 16, 32, true, true, mean}, type, type, device());
      compare({1, 12, 40, 40, 4, false, false, mean}, type, type, device());
    }
  }
}

TEST_P(GroupNormSilu, GivesTheSameBitsAgain) {
  for (const auto type : all_types) {
    for (const Case& c : {Case{3, 320, 9, 9, 32}, Case{2, 6, 50, 50, 2}}) {
      const auto inputs = make_inputs(c, type);
      expect_same_bits(is_cpu(), [&] { return run_ours(on(device(), inputs, type, type), c); });
    }
  }
}

// The gradient that arrives need not be channels-last, nor be memory at all.
TEST_P(GroupNormSilu, TakesGradientsOfAnyLayout) {
  const Case c{2, 16, 4, 4, 4};
  const auto inputs = on(device(), make_inputs(c, torch::kFloat32), torch::kFloat32, torch::kFloat32);
  group_norm_silu(inputs.x, inputs.time, inputs.weight, inputs.bias, c.groups).sum().backward();
  const auto ours = inputs.x.grad().clone();
  inputs.x.mutable_grad().reset();
  at::silu(at::group_norm(inputs.x + inputs.time.view({2, 16, 1, 1}), c.groups, inputs.weight, inputs.bias, eps))
      .sum()
      .backward();
  EXPECT_TRUE(torch::allclose(ours, inputs.x.grad(), 1e-4, 1e-5));
  EXPECT_TRUE(ours.is_contiguous(torch::MemoryFormat::ChannelsLast));
}

TEST_P(GroupNormSilu, MemoryThatIsNotAlignedIsRead) {
  const Case c{1, 16, 5, 5, 4};
  const auto inputs = on(device(), make_inputs(c, torch::kBFloat16), torch::kBFloat16, torch::kBFloat16);
  const auto run = [&](const Tensor& x) {
    return group_norm_silu(x, inputs.time, inputs.weight, inputs.bias, c.groups).detach();
  };
  EXPECT_LE(error_against(run(at_offset(inputs.x, 1)), run(inputs.x).to(torch::kFloat64)), 0.02);
}

TEST_P(GroupNormSilu, NanStaysInItsGroup) {
  const Case c{2, 16, 4, 4, 4, false};
  const auto inputs = on(device(), make_inputs(c, torch::kFloat32), torch::kFloat32, torch::kFloat32);
  const auto x = inputs.x.detach().clone();
  x[1][5][2][3] = std::nan("");
  const auto is_nan = group_norm_silu(x, {}, inputs.weight, inputs.bias, c.groups).isnan().cpu();
  EXPECT_EQ(is_nan.sum().item<int>(), 4 * 16);
  EXPECT_TRUE(is_nan[1].narrow(0, 4, 4).all().item<bool>());
}

TEST_P(GroupNormSilu, RefusesWhatDoesNotFit) {
  const auto options = torch::device(device());
  const auto x = torch::randn({2, 16, 4, 4}, options).contiguous(torch::MemoryFormat::ChannelsLast);
  const auto weight = torch::ones({16}, options);
  const auto call = [&](const Tensor& x, const Tensor& time, const Tensor& weight, int groups) {
    return [=] { group_norm_silu(x, time, weight, weight, groups); };
  };
  expect_error(call(x.contiguous(), {}, weight, 4), "x is not channels-last");
  expect_error(call(x[0], {}, weight, 4), "x has shape");
  expect_error(call(x.to(torch::kFloat64), {}, weight, 4), "x has type Double");
  expect_error(call(x, torch::zeros({16}, options), weight, 4), "time has shape [16], not [2, 16]");
  expect_error(call(x, torch::zeros({16, 2}, options).t(), weight, 4), "time is not contiguous");
  expect_error(call(x, {}, weight.narrow(0, 0, 8), 4), "weight has shape");
  expect_error(call(x, {}, {}, 4), "weight is undefined");
  expect_error(call(x, {}, weight, 3), "does not divide 16 channels");
}

MILLRACE_TEST_KERNELS(GroupNormSilu);

}  // namespace
}  // namespace millrace::kernels::group_norm_silu_tests
