#include "millrace/kernels/ops.h"
#include "testing.h"

namespace millrace::kernels::bias_tests {
namespace {

using torch::Tensor;
using Bias = OnDevice;

struct Inputs {
  Tensor x, bias, residual, y_grad;
};

std::vector<Tensor> outputs_of(const Inputs& inputs, const Tensor& y) {
  y.backward(inputs.y_grad);
  std::vector<Tensor> outputs{y.detach()};
  append_gradients(outputs, {inputs.x, inputs.bias, inputs.residual});
  return outputs;
}

Tensor along_channels(const Tensor& bias, const Tensor& x) {
  return x.dim() == 4 ? bias.view({-1, 1, 1}) : bias;
}

std::vector<Tensor> run_atens(const Inputs& inputs) {
  auto y = inputs.x + along_channels(inputs.bias, inputs.x);
  if (inputs.residual.defined()) y = y + inputs.residual;
  return outputs_of(inputs, y);
}

std::vector<Tensor> run_ours(const Inputs& inputs) {
  return outputs_of(inputs, add_bias(inputs.x, inputs.bias, inputs.residual));
}

Inputs make_inputs(std::vector<std::int64_t> sizes, bool with_residual, torch::Dtype type) {
  const auto random = [&](at::IntArrayRef of) { return torch::randn(of).to(type).to(torch::kFloat64); };
  const auto channels = sizes.size() == 4 ? sizes[1] : sizes.back();
  return {random(sizes), random({channels}), with_residual ? random(sizes) : Tensor(), random(sizes)};
}

Inputs on(torch::Device device, const Inputs& from, torch::Dtype type, torch::Dtype parameter_type) {
  const auto laid = [&](const Tensor& tensor) {
    return tensor.defined() && tensor.dim() == 4 ? tensor.contiguous(torch::MemoryFormat::ChannelsLast) : tensor;
  };
  return {leaf(laid(from.x), type, device), leaf(from.bias, parameter_type, device),
          leaf(laid(from.residual), type, device), laid(from.y_grad).to(device, type)};
}

void compare(const std::vector<std::int64_t>& sizes, bool with_residual, torch::Dtype type, torch::Device device) {
  const auto inputs = make_inputs(sizes, with_residual, type);
  const auto results = Results{run_ours(on(device, inputs, type, type)), run_atens(on(device, inputs, type, type)),
                               run_atens(on(torch::kCPU, inputs, torch::kFloat64, torch::kFloat64))};
  expect_close(results, type, c10::str(sizes, with_residual ? " with a residual" : ""));
}

// Widths of the networks and odd ones; one row, rows in one split and in many.
TEST_P(Bias, IsAtens) {
  for (const auto type : all_types)
    for (const bool with_residual : {false, true})
      for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{2, 320, 5, 7},
                                                                      {1, 4, 9, 9},
                                                                      {3, 1280, 1, 1},
                                                                      {2, 35, 4, 4},
                                                                      {1, 16, 61, 67},
                                                                      {6, 1280},
                                                                      {1, 8},
                                                                      {7, 1},
                                                                      {4097, 16},
                                                                      {2, 77, 640},
                                                                      {130, 12},
                                                                      {1, 1040}})
        compare(sizes, with_residual, type, device());
}

// A level of SD 2 at 512 pixels. Too slow for the twins.
TEST_P(Bias, IsAtensAtFullSize) {
  if (is_cpu()) GTEST_SKIP() << "large feature maps are for GPUs";
  for (const auto type : all_types)
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{8, 320, 64, 64}, {8, 4096, 320}, {65, 1280, 8, 8}})
      compare(sizes, /*with_residual=*/true, type, device());
}

// Each operand in turn.
TEST_P(Bias, MemoryThatIsNotAlignedIsRead) {
  for (const auto type : all_types)
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{2, 320, 5, 7}, {6, 1280}}) {
      const auto inputs = make_inputs(sizes, /*with_residual=*/true, type);
      for (const auto& [name, operand] : {std::pair{"x", &Inputs::x},
                                          {"bias", &Inputs::bias},
                                          {"residual", &Inputs::residual},
                                          {"y_grad", &Inputs::y_grad}}) {
        auto shifted = on(device(), inputs, type, type);
        shifted.*operand = at_offset(shifted.*operand, 1);
        const auto results = Results{run_ours(shifted), run_atens(on(device(), inputs, type, type)),
                                     run_atens(on(torch::kCPU, inputs, torch::kFloat64, torch::kFloat64))};
        expect_close(results, type, c10::str(sizes, " ", name));
      }
    }
}

TEST_P(Bias, OfAMatrixProductHasItsGradientAlone) {
  for (const auto type : all_types) {
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{2, 77, 64}, {5, 33}, {2, 3, 3, 16}, {1, 1}}) {
      auto inputs = make_inputs(sizes, false, type);
      inputs.bias = torch::randn({sizes.back()}).to(type).to(torch::kFloat64);
      const auto exact = Inputs{
          leaf(inputs.x, type, device()), leaf(inputs.bias, type, device()), {}, inputs.y_grad.to(device(), type)};
      const auto y = with_bias_gradient(exact.x, exact.bias);
      EXPECT_TRUE(torch::equal(y, exact.x));
      y.backward(exact.y_grad);
      EXPECT_TRUE(torch::equal(exact.x.grad(), exact.y_grad));
      const auto sum = inputs.y_grad.reshape({-1, sizes.back()}).sum(0);
      EXPECT_LE(error_against(exact.bias.grad(), sum), spacing(type) * (1 + largest(sum))) << type;
    }
  }
}

TEST_P(Bias, GivesTheSameBitsAgain) {
  for (const auto type : all_types) {
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{2, 88, 31, 17}, {3001, 7}}) {
      const auto inputs = make_inputs(sizes, true, type);
      expect_same_bits(is_cpu(), [&] { return run_ours(on(device(), inputs, type, type)); });
    }
  }
}

// The gradient that arrives need not be memory at all; parameters may be float32 beside 16 bits.
TEST_P(Bias, TakesGradientsOfAnyLayoutAndParametersOfAnotherType) {
  const auto inputs =
      on(device(), make_inputs({2, 16, 4, 4}, true, torch::kBFloat16), torch::kBFloat16, torch::kFloat32);
  add_bias(inputs.x, inputs.bias, inputs.residual).sum().backward();
  EXPECT_TRUE(torch::equal(inputs.bias.grad(), torch::full_like(inputs.bias, 32)));
  EXPECT_TRUE(torch::equal(inputs.residual.grad(), torch::ones_like(inputs.x)));
}

TEST_P(Bias, RefusesWhatDoesNotFit) {
  const auto x = torch::randn({2, 16, 4, 4}, torch::device(device())).contiguous(torch::MemoryFormat::ChannelsLast);
  const auto bias = torch::ones({16}, x.options());
  expect_error([&] { add_bias(x, bias.narrow(0, 0, 8)); }, "bias has shape");
  expect_error([&] { add_bias(x, {}); }, "bias is undefined");
  expect_error([&] { add_bias(x.contiguous(), bias); }, "a map is channels-last");
  expect_error([&] { add_bias(x, bias, x.contiguous()); }, "not the layout of x");
  expect_error([&] { add_bias(x, bias, x.to(torch::kBFloat16)); }, "residual has not the type of x");
  expect_error([&] { add_bias(x.narrow(0, 0, 0), bias); }, "x has shape");
  expect_error([&] { with_bias_gradient(x, bias); }, "bias has shape");
}

MILLRACE_TEST_KERNELS(Bias);

}  // namespace
}  // namespace millrace::kernels::bias_tests
