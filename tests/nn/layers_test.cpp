#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <cmath>

#include "millrace/nn/activation.h"
#include "millrace/nn/convolution.h"
#include "millrace/nn/gradient_checkpoint.h"
#include "millrace/nn/layers.h"
#include "millrace/nn/timestep_embedding.h"

namespace millrace::nn {
namespace {

TEST(List, NamesItsModulesByPosition) {
  const auto list = make_list<Linear>();
  list->add(Linear(2, 3));
  list->add(Linear(3, 1, false));
  const auto parameters = list->named_parameters();
  EXPECT_EQ(parameters.keys(), (std::vector<std::string>{"0.weight", "0.bias", "1.weight"}));
}

// Values of timestep 10 in a 320-channel embedding (the first Stable Diffusion's), and the order of the halves.
TEST(TimestepEmbedding, IsDiffusers) {
  const auto flipped = timestep_embedding(torch::tensor({10}), 320, true, 0)[0];
  EXPECT_NEAR(flipped[0].item<double>(), -0.839072, 1e-6);
  EXPECT_NEAR(flipped[159].item<double>(), 0.999999, 1e-6);
  EXPECT_NEAR(flipped[160].item<double>(), -0.544021, 1e-6);
  const auto plain = timestep_embedding(torch::tensor({10}), 320, false, 0)[0];
  EXPECT_TRUE(torch::equal(plain.narrow(0, 0, 160), flipped.narrow(0, 160, 160)));
}

TEST(TimestepEmbedding, TakesFractionsAndOddWidths) {
  const auto odd = timestep_embedding(torch::tensor({0.5}), 5, true, 1);
  EXPECT_EQ(odd.sizes(), (at::IntArrayRef{1, 5}));
  EXPECT_NEAR(odd[0][0].item<double>(), std::cos(0.5), 1e-6);
  EXPECT_NEAR(odd[0][1].item<double>(), std::cos(0.5e-4), 1e-6);  // 10000^(-1 / (2 - 1))
  EXPECT_EQ(odd[0][4].item<double>(), 0);
}

TEST(Activation, QuickGeluAndGegluAreTheirDefinitions) {
  const auto x = torch::linspace(-4, 4, 32).view({2, 16});
  EXPECT_TRUE(torch::allclose(activate(Activation::quick_gelu, x), x / (1 + torch::exp(-1.702 * x))));
  const auto value = x.narrow(1, 0, 8), gate = x.narrow(1, 8, 8);
  const auto gelu = gate * 0.5 * (1 + torch::erf(gate / std::sqrt(2.0)));
  EXPECT_TRUE(torch::allclose(geglu(x), value * gelu));
  EXPECT_EQ(try_parse_activation("swish"), Activation::silu);
  EXPECT_EQ(try_parse_activation("tanh"), std::nullopt);
}

// Output and gradients against LibTorch's own convolution, on both sides of the size from which that one is used.
TEST(Convolution, IsLibTorchs) {
  torch::manual_seed(7);
  struct Case {
    std::int64_t batch, in, out, height, width, kernel, stride, padding;
  };
  for (const auto& c :
       {Case{3, 64, 128, 2, 2, 3, 1, 1}, Case{2, 128, 64, 3, 1, 3, 1, 1}, Case{1, 64, 64, 1, 1, 3, 1, 1},
        Case{2, 96, 90, 4, 3, 3, 2, 1}, Case{2, 80, 128, 2, 2, 2, 1, 0}, Case{2, 160, 128, 3, 4, 3, 1, 1},
        Case{2, 3, 5, 9, 9, 3, 1, 1}, Case{2, 64, 64, 2, 2, 1, 1, 0}}) {
    constexpr auto layout = torch::MemoryFormat::ChannelsLast;
    const auto x = torch::randn({c.batch, c.in, c.height, c.width}).contiguous(layout).requires_grad_();
    const auto weight = torch::randn({c.out, c.in, c.kernel, c.kernel}).contiguous(layout).requires_grad_();
    const auto bias = torch::randn({c.out}).requires_grad_();
    const auto expected = at::conv2d(x, weight, bias, c.stride, c.padding);
    const auto actual = conv2d(x, weight, bias, c.stride, c.padding);
    ASSERT_EQ(actual.sizes(), expected.sizes());
    EXPECT_TRUE(actual.is_contiguous(layout));
    EXPECT_TRUE(torch::allclose(actual, expected, 1e-5, 1e-4)) << c.height << "x" << c.width;
    const auto output_grad = torch::randn_like(expected);
    const auto actual_grads = torch::autograd::grad({actual}, {x, weight, bias}, {output_grad});
    const auto expected_grads = torch::autograd::grad({expected}, {x, weight, bias}, {output_grad});
    for (int i = 0; i < 3; ++i)
      EXPECT_TRUE(torch::allclose(actual_grads[i], expected_grads[i], 1e-5, 2e-4)) << c.height << "x" << c.width << i;
  }
}

// An empty batch, no bias, and strides beyond the image are LibTorch's where it takes them; a kernel that does not fit
// is refused.
TEST(Convolution, IsLibTorchsAtItsLimits) {
  torch::manual_seed(8);
  const auto weight = torch::randn({128, 128, 3, 3}), bias = torch::randn({128});
  EXPECT_EQ(conv2d(torch::randn({0, 128, 2, 2}), weight, bias, 1, 1).sizes(), (at::IntArrayRef{0, 128, 2, 2}));
  const auto x = torch::randn({2, 128, 2, 2});
  EXPECT_TRUE(torch::allclose(conv2d(x, weight, {}, 1, 1), at::conv2d(x, weight, {}, 1, 1), 1e-5, 1e-4));
  EXPECT_TRUE(torch::allclose(conv2d(x, weight, bias, 5, 1), at::conv2d(x, weight, bias, 5, 1), 1e-5, 1e-4));
  EXPECT_ANY_THROW(conv2d(x, weight, bias, 1, 0));
}

TEST(Geglu, HasTheGradientOfItsParts) {
  torch::manual_seed(2);
  auto x = torch::randn({3, 5, 14}).requires_grad_();
  const auto weight = torch::randn({3, 5, 7});
  const auto actual = torch::autograd::grad({(geglu(x) * weight).sum()}, {x})[0];
  const auto halves = x.chunk(2, -1);
  const auto expected = torch::autograd::grad({(halves[0] * torch::gelu(halves[1]) * weight).sum()}, {x})[0];
  EXPECT_TRUE(torch::allclose(actual, expected, 1e-5, 1e-6));
}

TEST(Checkpoint, GivesGradientsToInputsAndParameters) {
  Linear layer(4, 4);
  {
    const torch::NoGradGuard no_grad;
    layer->weight.uniform_(-1, 1);
    layer->bias.uniform_(-1, 1);
  }
  auto x = torch::randn({3, 4}).requires_grad_();
  const auto constant = torch::randn({3, 4});
  const auto run = [&](bool checkpointed) {
    x.mutable_grad().reset();
    layer->zero_grad();
    const auto segment = [&](const TensorList& in) { return TensorList{torch::tanh(layer(in[0])) * in[1], in[0] * 2}; };
    const auto outputs = checkpointed ? checkpoint(segment, {x, constant}, false) : segment({x, constant});
    outputs[0].pow(2).sum().backward();  // the second output stays unused
    return TensorList{x.grad().clone(), layer->weight.grad().clone(), layer->bias.grad().clone()};
  };
  const auto plain = run(false), checkpointed = run(true);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(torch::equal(plain[i], checkpointed[i])) << i;
}

}  // namespace
}  // namespace millrace::nn
