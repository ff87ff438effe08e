#include <torch/autograd.h>
#include "millrace/kernels/ops.h"
#include "testing.h"

namespace millrace::kernels::layer_norm_tests {
namespace {

using torch::Tensor;
using LayerNorm = OnDevice;

constexpr double eps = 1e-5;

struct Inputs {
  Tensor x, residual, weight, bias, y_grad, s_grad;
  std::vector<Tensor> leaves() const { return {x, residual, weight, bias}; }
};

// y, and s where there is a residual; then gradients.
std::vector<Tensor> outputs_of(const Inputs& inputs, const Tensor& s, const Tensor& y) {
  std::vector<Tensor> outputs{y.detach()};
  if (inputs.residual.defined()) {
    outputs.push_back(s.detach());
    torch::autograd::backward({s, y}, {inputs.s_grad, inputs.y_grad});
  } else {
    y.backward(inputs.y_grad);
  }
  append_gradients(outputs, inputs.leaves());
  return outputs;
}

std::vector<Tensor> run_atens(const Inputs& inputs) {
  const auto s = inputs.residual.defined() ? inputs.x + inputs.residual : inputs.x;
  return outputs_of(inputs, s, at::layer_norm(s, inputs.weight.sizes(), inputs.weight, inputs.bias, eps));
}

std::vector<Tensor> run_ours(const Inputs& inputs) {
  if (!inputs.residual.defined()) return outputs_of(inputs, {}, layer_norm(inputs.x, inputs.weight, inputs.bias, eps));
  const auto [s, y] = add_layer_norm(inputs.x, inputs.residual, inputs.weight, inputs.bias, eps);
  return outputs_of(inputs, s, y);
}

Inputs make_inputs(std::int64_t rows, std::int64_t channels, bool with_residual, double mean, torch::Dtype type) {
  const auto rounded = [&](const Tensor& tensor) { return tensor.to(type).to(torch::kFloat64); };
  const auto noise = [&] { return torch::randn({rows, channels}); };
  return {rounded(noise() + mean),
          with_residual ? rounded(noise()) : Tensor(),
          rounded(1 + 0.3 * noise()[0]),
          rounded(0.3 * noise()[0]),
          rounded(noise()),
          rounded(noise())};
}

Inputs on(torch::Device device, const Inputs& from, torch::Dtype type, torch::Dtype parameter_type) {
  return {leaf(from.x, type, device),
          leaf(from.residual, type, device),
          leaf(from.weight, parameter_type, device),
          leaf(from.bias, parameter_type, device),
          from.y_grad.to(device, type),
          from.s_grad.to(device, type)};
}

void compare(std::int64_t rows, std::int64_t channels, bool with_residual, double mean, torch::Dtype type,
             torch::Dtype parameter_type, torch::Device device) {
  const auto inputs = make_inputs(rows, channels, with_residual, mean, type);
  const auto results =
      Results{run_ours(on(device, inputs, type, parameter_type)), run_atens(on(device, inputs, type, type)),
              run_atens(on(torch::kCPU, inputs, torch::kFloat64, torch::kFloat64))};
  expect_close(results, type,
               std::to_string(rows) + " x " + std::to_string(channels) + (with_residual ? " with residual" : "") +
                   " mean " + std::to_string(mean));
}

// Widths of the networks, and those that are no multiple of a vector or of a warp; 1601 rows make more partial sums
// than are added at once.
TEST_P(LayerNorm, IsAtens) {
  for (const auto type : all_types) {
    for (const bool with_residual : {false, true}) {
      for (const auto& [rows, channels] : {std::pair{9, 320},
                                           {6, 640},
                                           {5, 1280},
                                           {3, 2048},
                                           {7, 768},
                                           {77, 1024},
                                           {1, 8},
                                           {3, 7},
                                           {65, 33},
                                           {4097, 16},
                                           {1601, 320},
                                           {1601, 321},
                                           {1, 1040}}) {
        compare(rows, channels, with_residual, 0, type, type, device());
      }
      compare(33, 320, with_residual, 0, type, torch::kFloat32, device());
    }
  }
}

// Tokens of SD 2 at 512 pixels. Too slow for the twins.
TEST_P(LayerNorm, IsAtensAtFullSize) {
  if (is_cpu()) GTEST_SKIP() << "many tokens are for GPUs";
  for (const auto type : all_types) {
    compare(8 * 4096, 320, /*with_residual=*/true, 0, type, type, device());
    compare(65 * 64, 1280, /*with_residual=*/true, 0, type, type, device());
  }
}

// Each operand in turn.
TEST_P(LayerNorm, MemoryThatIsNotAlignedIsRead) {
  for (const auto type : all_types)
    for (const bool with_residual : {false, true}) {
      const auto inputs = make_inputs(9, 320, with_residual, 0, type);
      for (const auto& [name, operand] : {std::pair{"x", &Inputs::x},
                                          {"residual", &Inputs::residual},
                                          {"weight", &Inputs::weight},
                                          {"bias", &Inputs::bias},
                                          {"y_grad", &Inputs::y_grad},
                                          {"s_grad", &Inputs::s_grad}}) {
        auto shifted = on(device(), inputs, type, type);
        if (!(shifted.*operand).defined()) continue;
        shifted.*operand = at_offset(shifted.*operand, 1);
        const auto results = Results{run_ours(shifted), run_atens(on(device(), inputs, type, type)),
                                     run_atens(on(torch::kCPU, inputs, torch::kFloat64, torch::kFloat64))};
        expect_close(results, type, c10::str(name, with_residual ? " with residual" : ""));
      }
    }
}

TEST_P(LayerNorm, ALargeMeanCostsNoDigits) {
  for (const auto type : {torch::kFloat32, torch::kFloat16}) {
    compare(50, 320, false, 100, type, type, device());
    compare(50, 321, false, -100, type, type, device());
  }
}

TEST_P(LayerNorm, GivesTheSameBitsAgain) {
  for (const auto type : all_types) {
    const auto inputs = make_inputs(301, 88, true, 0, type);
    expect_same_bits(is_cpu(), [&] { return run_ours(on(device(), inputs, type, type)); });
  }
}

// Of the two outputs of add_layer_norm either may be unused.
TEST_P(LayerNorm, AnUnusedOutputHasNoGradient) {
  const auto inputs = on(device(), make_inputs(5, 16, true, 0, torch::kFloat32), torch::kFloat32, torch::kFloat32);
  const auto [s, y] = add_layer_norm(inputs.x, inputs.residual, inputs.weight, inputs.bias, eps);
  s.backward(inputs.s_grad);
  EXPECT_TRUE(torch::equal(inputs.x.grad(), inputs.s_grad));
  EXPECT_TRUE(torch::equal(inputs.residual.grad(), inputs.s_grad));
  EXPECT_FALSE(inputs.weight.grad().defined());
  const auto normed = add_layer_norm(inputs.x, inputs.residual, inputs.weight, inputs.bias, eps).second;
  inputs.x.mutable_grad().reset();
  normed.backward(inputs.y_grad);
  const auto ours = inputs.x.grad().clone();
  inputs.x.mutable_grad().reset();
  at::layer_norm(inputs.x + inputs.residual, {16}, inputs.weight, inputs.bias, eps).backward(inputs.y_grad);
  EXPECT_TRUE(torch::allclose(ours, inputs.x.grad(), 1e-4, 1e-5));
}

TEST_P(LayerNorm, RefusesWhatDoesNotFit) {
  const auto x = torch::randn({4, 10}, torch::device(device()));
  const auto weight = x[0].clone();
  expect_error([&] { layer_norm(x.t(), weight, weight, eps); }, "x is not contiguous");
  expect_error([&] { layer_norm(x, weight.narrow(0, 0, 9), weight, eps); }, "weight has shape");
  expect_error([&] { add_layer_norm(x, x[0], weight, weight, eps); }, "residual has shape");
  expect_error([&] { add_layer_norm(x, x.to(torch::kFloat16), weight, weight, eps); }, "residual has not the type");
}

MILLRACE_TEST_KERNELS(LayerNorm);

}  // namespace
}  // namespace millrace::kernels::layer_norm_tests
