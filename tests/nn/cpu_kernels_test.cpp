#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cpu/geglu.h"
#include "cpu/group_norm.h"
#include "cpu/per_processor.h"
#include "millrace/nn/activation.h"

namespace millrace::nn {
namespace {

using Tensors = std::vector<torch::Tensor>;
constexpr auto pixel_by_pixel = torch::MemoryFormat::ChannelsLast;

// The output and the gradients of `inputs` of its product with `output_grad`.
template <class Compute>
Tensors output_and_gradients(const Compute& compute, const Tensors& inputs, const torch::Tensor& output_grad) {
  const auto output = compute(inputs);
  auto all = torch::autograd::grad({output}, inputs, {output_grad.to(output.scalar_type())});
  all.insert(all.begin(), output.detach());
  return all;
}

Tensors as_doubles(const Tensors& inputs) {
  Tensors doubles;
  for (const auto& input : inputs) doubles.push_back(input.detach().to(torch::kDouble).requires_grad_());
  return doubles;
}

// To `tolerance` of the largest, or of 1: all of a gradient may be 0.
void expect_close(const Tensors& actual, const Tensors& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].sizes(), expected[i].sizes()) << what << ", " << i;
    const double largest = std::max(1.0, expected[i].abs().max().item<double>());
    EXPECT_LE((actual[i] - expected[i]).abs().max().item<double>(), tolerance * largest) << what << ", " << i;
  }
}

struct NormCase {
  std::int64_t batch, channels, groups, height, width;
  bool with_time, with_silu;
  double mean = 0;

  std::string name() const {
    return c10::str(batch, "x", channels, "/", groups, "x", height, "x", width, with_time ? " with time" : "",
                    with_silu ? " with SiLU" : "", " around ", mean);
  }
  // x, weight, bias and maybe time.
  Tensors inputs() const {
    Tensors all{(mean + torch::randn({batch, channels, height, width})).contiguous(pixel_by_pixel),
                torch::randn({channels}), torch::randn({channels})};
    if (with_time) all.push_back(torch::randn({batch, channels}));
    for (auto& input : all) input.requires_grad_();
    return all;
  }
  torch::Tensor own(const Tensors& in) const {
    return group_norm_of_pixels(in[0], with_time ? in[3] : torch::Tensor(), in[1], in[2], groups, 1e-5, with_silu);
  }
  torch::Tensor by_libtorch(const Tensors& in) const {
    const auto x = with_time ? in[0] + in[3].unsqueeze(-1).unsqueeze(-1) : in[0];
    const auto normed = at::group_norm(x, groups, in[1], in[2], 1e-5);
    return with_silu ? at::silu(normed) : normed;
  }
};

void expect_libtorchs(const NormCase& c, double tolerance) {
  const auto inputs = c.inputs();
  ASSERT_TRUE(suits_group_norm_kernel(inputs[0]));
  const auto output_grad = torch::randn(inputs[0].sizes());
  const auto actual = output_and_gradients([&](const Tensors& in) { return c.own(in); }, inputs, output_grad);
  EXPECT_TRUE(actual[0].is_contiguous(pixel_by_pixel));
  expect_close(
      actual,
      output_and_gradients([&](const Tensors& in) { return c.by_libtorch(in); }, as_doubles(inputs), output_grad),
      tolerance, c.name());
}

TEST(GroupNormOfPixels, IsLibTorchsInDoublePrecision) {
  torch::manual_seed(11);
  std::mt19937 random(11);
  const auto one_of = [&](std::vector<std::int64_t> values) { return values[random() % values.size()]; };
  for (int i = 0; i < 60; ++i) {
    const std::int64_t channels = one_of({8, 16, 24, 40, 64, 320}), groups = one_of({1, 2, 8, channels});
    expect_libtorchs({one_of({1, 2, 3, 8}), channels, groups, one_of({1, 2, 7, 16, 19}), one_of({1, 3, 8, 16, 27}),
                      random() % 2 == 0, random() % 2 == 0},
                     2e-5);
  }
}

// A hundred standard deviations away from 0 the inputs themselves have two digits less.
TEST(GroupNormOfPixels, KeepsItsDigitsFarFromZero) {
  torch::manual_seed(12);
  expect_libtorchs({2, 32, 4, 20, 20, false, true, 100}, 1e-4);
  expect_libtorchs({2, 32, 4, 20, 20, true, true, -100}, 1e-4);
}

// Whichever pixel of a strip it is: none may be what others are counted from.
TEST(GroupNormOfPixels, KeepsItsDigitsBesideAnOutlier) {
  torch::manual_seed(18);
  for (const double noise : {0.0, 1.0}) {
    for (const std::int64_t place : {0, 1, 8, 127, 128, 40000, 65535}) {
      auto x = (noise * torch::randn({1, 8, 256, 256})).contiguous(pixel_by_pixel);
      x.permute({0, 2, 3, 1}).view({-1, 8})[place] = noise == 0 ? 57.7 : 1e4;
      const auto own = group_norm_of_pixels(x, {}, torch::ones({8}), torch::zeros({8}), 8, 1e-5, false);
      const auto expected = at::group_norm(x.to(torch::kDouble), 8, {}, {}, 1e-5);
      expect_close({own}, {expected}, 2e-5, c10::str(noise, " at ", place));
    }
  }
}

TEST(GroupNormOfPixels, NaNStaysInItsGroup) {
  torch::manual_seed(13);
  const auto x = torch::randn({2, 16, 3, 3}).contiguous(pixel_by_pixel);
  x[1][5][0][2] = NAN;
  const auto broken = group_norm_of_pixels(x, {}, torch::ones({16}), torch::zeros({16}), 4, 1e-5, true).isnan();
  EXPECT_TRUE(broken[1].narrow(0, 4, 4).all().item<bool>());
  EXPECT_EQ(broken.sum().item<int>(), 4 * 9);
}

TEST(GroupNormOfPixels, DoesNotDependOnTheNumberOfThreads) {
  torch::manual_seed(14);
  const NormCase c{6, 48, 8, 17, 19, true, true};
  const auto inputs = c.inputs();
  const auto output_grad = torch::randn(inputs[0].sizes());
  const int threads_before = at::get_num_threads();
  std::vector<Tensors> results;
  for (const int threads : {1, 2, 4, 5}) {
    at::set_num_threads(threads);
    results.push_back(output_and_gradients([&](const Tensors& in) { return c.own(in); }, inputs, output_grad));
  }
  at::set_num_threads(threads_before);
  for (std::size_t i = 1; i < results.size(); ++i)
    for (std::size_t j = 0; j < results[0].size(); ++j) EXPECT_TRUE(results[0][j].equal(results[i][j])) << i << j;
}

TEST(GroupNormOfPixels, RefusesSizesThatDoNotFit) {
  const auto x = torch::randn({2, 16, 3, 3}).contiguous(pixel_by_pixel), ones = torch::ones({16});
  const auto call = [&](const torch::Tensor& time, const torch::Tensor& weight, const torch::Tensor& bias,
                        std::int64_t groups) { group_norm_of_pixels(x, time, weight, bias, groups, 1e-5, true); };
  EXPECT_NO_THROW(call(torch::zeros({2, 16}), ones, ones, 4));
  EXPECT_ANY_THROW(call({}, ones, ones, 5));
  EXPECT_ANY_THROW(call({}, ones, ones, 0));
  EXPECT_ANY_THROW(call(torch::zeros({1, 16}), ones, ones, 4));
  EXPECT_ANY_THROW(call({}, torch::ones({8}), ones, 4));
  EXPECT_ANY_THROW(call({}, ones, torch::ones({32}).slice(0, 0, 32, 2), 4));
}

TEST(GroupNormOfPixels, RefusesASecondDerivative) {
  const NormCase c{1, 8, 2, 3, 3, false, true};
  const auto inputs = c.inputs();
  const auto output = c.own(inputs).square().sum();
  EXPECT_ANY_THROW(torch::autograd::grad({output}, {inputs[0]}, {}, /*retain_graph=*/true, /*create_graph=*/true));
}

TEST(GegluInOnePass, IsItsDefinitionInDoublePrecision) {
  torch::manual_seed(15);
  for (const std::int64_t channels : {8, 16, 24, 640}) {
    const auto x = (3 * torch::randn({3, 11, 2 * channels})).requires_grad_();
    ASSERT_TRUE(suits_geglu_kernel(x));
    const auto output_grad = torch::randn({3, 11, channels});
    const auto definition = [](const Tensors& in) {
      const auto halves = in[0].chunk(2, -1);
      return halves[0] * at::gelu(halves[1]);
    };
    expect_close(output_and_gradients([](const Tensors& in) { return geglu_in_one_pass(in[0]); }, {x}, output_grad),
                 output_and_gradients(definition, as_doubles({x}), output_grad), 1e-6, c10::str(channels));
  }
}

// Far out gelu is the identity or nothing, and its derivative 1 or 0.
TEST(GegluInOnePass, FarOutIsItsLimit) {
  const auto gate = torch::tensor({-1e30f, -1e4f, -40.0f, -14.0f, 14.0f, 40.0f, 1e4f, 1e18f});
  const auto x = torch::cat({torch::full({8}, 2.0f), gate}).unsqueeze(0).requires_grad_();
  const auto y = geglu_in_one_pass(x);
  EXPECT_TRUE(torch::allclose(y[0], 2 * gate.clamp_min(0), 1e-6, 1e-6)) << y;
  const auto grad = torch::autograd::grad({y.sum()}, {x})[0][0];
  EXPECT_TRUE(torch::allclose(grad.narrow(0, 8, 8), 2 * (gate > 0).to(torch::kFloat), 1e-6, 1e-6)) << grad;
}

TEST(GegluInOnePass, NaNStaysInItsPlace) {
  const auto x = torch::randn({2, 32});
  x[1][19] = NAN;
  const auto broken = geglu_in_one_pass(x).isnan();
  EXPECT_TRUE(broken[1][3].item<bool>());
  EXPECT_EQ(broken.sum().item<int>(), 1);
}

bool has_denormals(const torch::Tensor& x) {
  return ((x != 0) & (x.abs() < std::numeric_limits<float>::min())).any().item<bool>();
}

// Where the exponential ends it still is what it should be, and nothing that is computed with it becomes denormal.
TEST(CpuKernels, HaveNoDenormalsWhereExponentialsEnd) {
  const auto far = torch::linspace(-110, 0, 4096);
  {
    // The density's exponent is half the gate's square.
    const auto gate = -(-2 * far).sqrt();
    const auto x = torch::cat({torch::full({4096}, 0.1f), gate}).unsqueeze(0).requires_grad_();
    const auto output_grad = torch::full({1, 4096}, 1e-6);
    const auto definition = [](const Tensors& in) { return in[0].chunk(2, -1)[0] * at::gelu(in[0].chunk(2, -1)[1]); };
    const auto own = output_and_gradients([](const Tensors& in) { return geglu_in_one_pass(in[0]); }, {x}, output_grad);
    expect_close(own, output_and_gradients(definition, as_doubles({x}), output_grad), 1e-6, "geglu");
    for (const auto& tensor : own) EXPECT_FALSE(has_denormals(tensor));
  }
  {
    // A norm that leaves x as it is: SiLU of it.
    const PixelStrip strip{512, 8};
    const auto zeros = torch::zeros({8}), ones = torch::ones({8}), y_grad = torch::full({4096}, 1e-6f);
    const auto y = torch::empty({4096}), x_grad = torch::empty({4096}), sums = torch::zeros({3, 8});
    const auto in = [](const torch::Tensor& tensor) { return tensor.const_data_ptr<float>(); };
    const ChannelNorm norm{in(zeros), in(ones), in(zeros)};
    const auto& kernel = best_kernels(8).group_norm;
    kernel.normalize(strip, in(far), norm, true, y.mutable_data_ptr<float>());
    kernel.add_gradient_sums(strip, in(far), in(y_grad), norm, true, x_grad.mutable_data_ptr<float>(),
                             sums.mutable_data_ptr<float>());
    const auto silu = [](const Tensors& in) { return at::silu(in[0]); };
    auto x = far.detach().requires_grad_();
    expect_close({y, x_grad}, output_and_gradients(silu, as_doubles({x}), y_grad), 1e-6, "SiLU");
    EXPECT_TRUE(torch::allclose(y.narrow(0, 2048, 2048).to(torch::kDouble),
                                at::silu(far.narrow(0, 2048, 2048).to(torch::kDouble)), 1e-5, 0))
        << "to relative precision down to e^-55";
    for (const auto& tensor : {y, x_grad}) EXPECT_FALSE(has_denormals(tensor));
  }
  {
    // One query, whose scores are as far apart; sqrt(8) is what attention divides them by.
    const HeadShape shape{1, 4096, 8};
    auto q = torch::zeros({1, 8}), k = torch::zeros({4096, 8});
    q[0][0] = std::sqrt(8.0);
    k.select(1, 0).copy_(far);
    const auto v = torch::full({4096, 8}, 0.1f), out = torch::empty({1, 8});
    const auto probabilities = torch::zeros({4096, shape.tile()}), scratch = torch::empty(shape.scratch());
    const auto const_rows = [&](const torch::Tensor& x) { return ConstRows{x.const_data_ptr<float>(), 8}; };
    best_kernels(8).attention.forward(shape, const_rows(q), const_rows(k), const_rows(v),
                                      probabilities.mutable_data_ptr<float>(), scratch.mutable_data_ptr<float>(),
                                      {out.mutable_data_ptr<float>(), 8});
    expect_close({probabilities.select(1, 0)}, {far.to(torch::kDouble).softmax(0)}, 1e-6, "softmax");
    EXPECT_FALSE(has_denormals(probabilities) || has_denormals(probabilities * 1e-6));
  }
}

// All kernels' outputs on the same random inputs: (21 pixels or rows, 48 channels), and a head of attention.
Tensors outputs_of(const CpuKernels& kernels) {
  torch::manual_seed(16);
  const PixelStrip strip{21, 48};
  const auto x = torch::randn({21, 48}), y_grad = torch::randn({21, 48}), rows = torch::randn({21, 96});
  const auto shift = torch::randn({48}), scale = torch::randn({48}), beta = torch::randn({48});
  const HeadShape head{21, 13, 48};
  const auto k = torch::randn({13, 48}), v = torch::randn({13, 48});
  const auto probabilities = torch::zeros(head.probabilities()), scratch = torch::empty(head.scratch());
  Tensors out{torch::zeros({3, 48}),  torch::empty({21, 48}), torch::zeros({3, 48}),  torch::empty({21, 48}),
              torch::empty({21, 48}), torch::empty({21, 96}), torch::empty({21, 48}), torch::empty({21, 48}),
              torch::empty({13, 48}), torch::empty({13, 48})};
  const auto in = [](const torch::Tensor& tensor) { return tensor.const_data_ptr<float>(); };
  const auto in_rows = [&](const torch::Tensor& tensor) { return ConstRows{in(tensor), 48}; };
  const auto to = [&](int i) { return out[i].mutable_data_ptr<float>(); };
  const auto to_rows = [&](int i) { return MutableRows{to(i), 48}; };
  const ChannelNorm norm{in(shift), in(scale), in(beta)};
  kernels.group_norm.find_moments(strip, in(x), to(0));
  kernels.group_norm.normalize(strip, in(x), norm, true, to(1));
  kernels.group_norm.add_gradient_sums(strip, in(x), in(y_grad), norm, true, to(3), to(2));
  kernels.group_norm.finish_gradient(strip, in(x), norm, in(beta), in(scale), to(3));
  kernels.geglu.forward({21, 48}, in(rows), to(4));
  kernels.geglu.backward({21, 48}, in(rows), in(y_grad), to(5));
  kernels.attention.forward(head, in_rows(x), in_rows(k), in_rows(v), probabilities.mutable_data_ptr<float>(),
                            scratch.mutable_data_ptr<float>(), to_rows(6));
  kernels.attention.backward(head, in_rows(x), in_rows(k), in_rows(v), in(probabilities), in_rows(y_grad),
                             scratch.mutable_data_ptr<float>(), to_rows(7), to_rows(8), to_rows(9));
  return out;
}

// The code for any processor and that for this one.
TEST(CpuKernels, PortableOnesGiveTheSame) {
  const auto portable = outputs_of(portable_kernels());
  for (const std::int64_t size : {8, 16}) expect_close(outputs_of(best_kernels(size)), portable, 1e-5, c10::str(size));
}

// Registers of 8 and of 16 floats: what is computed does not depend on the processor, if it has the one or the other.
TEST(CpuKernels, WiderRegistersGiveTheSameBits) {
  if (best_kernels(16).width == best_kernels(8).width) GTEST_SKIP() << "no registers of 16 floats";
  const auto narrow = outputs_of(best_kernels(8)), wide = outputs_of(best_kernels(16));
  for (std::size_t i = 0; i < wide.size(); ++i) EXPECT_TRUE(narrow[i].equal(wide[i])) << i;
}

// scripts/test_processors has them tested with each.
TEST(CpuKernels, AreThoseThatLibTorchWouldTake) {
  const auto capability = at::get_cpu_capability();
  const std::int64_t width = capability == "AVX512" ? 16 : capability == "AVX2" ? 8 : 4;
  EXPECT_EQ(best_kernels(16).width, width);
  EXPECT_EQ(best_kernels(8).width, std::min<std::int64_t>(width, 8));
}

}  // namespace
}  // namespace millrace::nn
