#include "millrace/kernels/ops.h"
#include "testing.h"

namespace millrace::kernels::geglu_tests {
namespace {

using torch::Tensor;
using Geglu = OnDevice;

struct Inputs {
  Tensor x, bias, y_grad;
};

std::vector<Tensor> outputs_of(const Inputs& inputs, const Tensor& y) {
  y.backward(inputs.y_grad);
  std::vector<Tensor> outputs{y.detach()};
  append_gradients(outputs, {inputs.x, inputs.bias});
  return outputs;
}

std::vector<Tensor> run_atens(const Inputs& inputs) {
  const auto halves = (inputs.bias.defined() ? inputs.x + inputs.bias : inputs.x).chunk(2, -1);
  return outputs_of(inputs, halves[0] * at::gelu(halves[1]));
}

std::vector<Tensor> run_ours(const Inputs& inputs) {
  return outputs_of(inputs, geglu(inputs.x, inputs.bias));
}

Inputs make_inputs(std::int64_t rows, std::int64_t channels, bool with_bias, torch::Dtype type) {
  const auto rounded = [&](const Tensor& tensor) { return tensor.to(type).to(torch::kFloat64); };
  return {rounded(2 * torch::randn({rows, 2 * channels})), with_bias ? rounded(torch::randn({2 * channels})) : Tensor(),
          rounded(torch::randn({rows, channels}))};
}

Inputs on(torch::Device device, const Inputs& from, torch::Dtype type) {
  return {leaf(from.x, type, device), leaf(from.bias, type, device), from.y_grad.to(device, type)};
}

// Widths of the networks (4 C), and those that are no multiple of a vector.
TEST_P(Geglu, IsAtens) {
  for (const auto type : all_types) {
    for (const bool with_bias : {false, true}) {
      for (const auto& [rows, channels] :
           {std::pair{6, 1280}, {5, 2560}, {3, 5120}, {1, 8}, {7, 1}, {130, 12}, {65, 33}, {4097, 16}, {1, 1040}}) {
        const auto inputs = make_inputs(rows, channels, with_bias, type);
        const auto results = Results{run_ours(on(device(), inputs, type)), run_atens(on(device(), inputs, type)),
                                     run_atens(on(torch::kCPU, inputs, torch::kFloat64))};
        expect_close(results, type,
                     std::to_string(rows) + " x " + std::to_string(channels) + (with_bias ? " with bias" : ""));
      }
    }
  }
}

// Tokens of SD 2 at 512 pixels. Too slow for the twins.
TEST_P(Geglu, IsAtensAtFullSize) {
  if (is_cpu()) GTEST_SKIP() << "many tokens are for GPUs";
  for (const auto type : all_types) {
    for (const auto& [rows, channels] : {std::pair{4 * 4096, 1280}, {65 * 64, 5120}}) {
      const auto inputs = make_inputs(rows, channels, /*with_bias=*/true, type);
      const auto results = Results{run_ours(on(device(), inputs, type)), run_atens(on(device(), inputs, type)),
                                   run_atens(on(torch::kCPU, inputs, torch::kFloat64))};
      expect_close(results, type, std::to_string(rows) + " x " + std::to_string(channels));
    }
  }
}

// Each operand in turn.
TEST_P(Geglu, MemoryThatIsNotAlignedIsRead) {
  for (const auto type : all_types) {
    const auto inputs = make_inputs(6, 1280, /*with_bias=*/true, type);
    for (const auto& [name, operand] :
         {std::pair{"x", &Inputs::x}, {"bias", &Inputs::bias}, {"y_grad", &Inputs::y_grad}}) {
      auto shifted = on(device(), inputs, type);
      shifted.*operand = at_offset(shifted.*operand, 1);
      const auto results = Results{run_ours(shifted), run_atens(on(device(), inputs, type)),
                                   run_atens(on(torch::kCPU, inputs, torch::kFloat64))};
      expect_close(results, type, name);
    }
  }
}

TEST_P(Geglu, HoldsAtTheEndsOfTheGate) {
  const auto x = torch::tensor({{3.f, 3.f, 3.f, 3.f, -100.f, 100.f, 0.f, -1e30f}}).to(device());
  EXPECT_TRUE(torch::equal(geglu(x).cpu(), torch::tensor({{0.f, 300.f, 0.f, 0.f}})));
}

TEST_P(Geglu, GivesTheSameBitsAgain) {
  for (const auto type : all_types) {
    const auto inputs = make_inputs(301, 88, true, type);
    expect_same_bits(is_cpu(), [&] { return run_ours(on(device(), inputs, type)); });
  }
}

TEST_P(Geglu, TakesTokensOfImages) {
  const auto x = torch::randn({2, 9, 32}, torch::device(device()));
  EXPECT_EQ(geglu(x).sizes(), (at::IntArrayRef{2, 9, 16}));
  EXPECT_TRUE(torch::equal(geglu(x)[1], geglu(x[1])));
}

TEST_P(Geglu, RefusesWhatDoesNotFit) {
  const auto x = torch::randn({4, 10}, torch::device(device()));
  expect_error([&] { geglu(x.narrow(1, 0, 9)); }, "x has shape");
  expect_error([&] { geglu(x.narrow(1, 0, 8)); }, "x is not contiguous");
  expect_error([&] { geglu(x, x[0].narrow(0, 0, 5)); }, "bias has shape");
}

MILLRACE_TEST_KERNELS(Geglu);

}  // namespace
}  // namespace millrace::kernels::geglu_tests
