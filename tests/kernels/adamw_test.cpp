#include "adamw.h"

#include <torch/optim.h>

#include "millrace/kernels/ops.h"
#include "testing.h"

namespace millrace::kernels {
namespace {

using torch::Tensor;
using AdamwKernel = OnDevice;

const std::vector<std::int64_t> sizes{1, 7, 8, 9, 255, 4097, 100003};
constexpr AdamwSettings settings{
    .lr = 3e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-6, .weight_decay = 0.05, .ema_decay = 0.9};

struct Shard : AdamwShard {
  std::int64_t updates = 0;

  Shard(const Tensor& start, torch::Dtype published_type, std::int64_t offset) {
    weights = at_offset(start, offset);
    exp_avg = at_offset(torch::zeros_like(start), offset);
    exp_avg_sq = at_offset(torch::zeros_like(start), offset);
    ema = at_offset(start, offset);
    published = at_offset(start.to(published_type), offset);
  }
  void step(const Tensor& new_gradient, AdamwSettings s = settings) {
    gradient = new_gradient;
    s.step = ++updates;
    adamw_step(*this, s);
  }
  std::vector<Tensor> tensors() const { return {weights, exp_avg, exp_avg_sq, ema, published}; }
};

// torch::optim::AdamW in float64, with an EMA.
struct Reference {
  Tensor weights, ema;
  torch::optim::AdamW optimizer;

  explicit Reference(const Tensor& start)
      : weights(start.cpu().to(torch::kFloat64).requires_grad_()),
        ema(weights.detach().clone()),
        optimizer({weights}, torch::optim::AdamWOptions(settings.lr)
                                 .betas({settings.beta1, settings.beta2})
                                 .eps(settings.eps)
                                 .weight_decay(settings.weight_decay)) {}
  void step(const Tensor& gradient) {
    weights.mutable_grad() = gradient.cpu().to(torch::kFloat64);
    optimizer.step();
    ema.lerp_(weights.detach(), 1 - settings.ema_decay);
  }
};

// Each step rounds a weight once, of about 1 to 4.
void compare(std::int64_t n, torch::Dtype gradient_type, torch::Dtype published_type, std::int64_t offset, int steps,
             torch::Device device) {
  const auto start = torch::randn({n}, torch::device(device));
  Shard ours(start, published_type, offset);
  Reference reference(start);
  for (int step = 0; step < steps; ++step) {
    const auto gradient = at_offset((0.1 * torch::randn({n}, torch::device(device))).to(gradient_type), offset);
    ours.step(gradient);
    reference.step(gradient);
  }
  const auto what = ::testing::Message() << n << " elements, offset " << offset << ", " << gradient_type;
  const double scale = largest(reference.weights);
  ASSERT_LE(error_against(ours.weights, reference.weights.detach()), 2e-6 * scale) << what;
  ASSERT_LE(error_against(ours.ema, reference.ema), 2e-6 * scale) << what;
  ASSERT_TRUE(torch::equal(ours.published, ours.weights.to(published_type))) << what;
}

TEST_P(AdamwKernel, IsTorchsAdamW) {
  for (const std::int64_t n : sizes)
    for (const auto gradient_type : {torch::kFloat32, torch::kBFloat16})
      for (const auto published_type : all_types)
        for (const std::int64_t offset : {0, 1, 3})
          ASSERT_NO_FATAL_FAILURE(compare(n, gradient_type, published_type, offset, 5, device()));
}

// The largest grid has a thread for each 8 of 2^23 elements: its first threads go round again.
TEST_P(AdamwKernel, IsTorchsAdamWOfMoreElementsThanTheGridTakesAtOnce) {
  compare((1 << 23) + 4097, torch::kFloat32, torch::kFloat32, /*offset=*/0, /*steps=*/2, device());
}

TEST_P(AdamwKernel, LeavesOutWhatIsNotThere) {
  const auto start = torch::randn({1001}, torch::device(device())), gradient = torch::randn_like(start);
  Shard with(start, torch::kBFloat16, 0), without(start, torch::kBFloat16, 0);
  without.ema = without.published = Tensor();
  with.step(gradient);
  without.step(gradient);
  EXPECT_TRUE(torch::equal(with.weights, without.weights));
  EXPECT_TRUE(torch::equal(with.exp_avg_sq, without.exp_avg_sq));
}

TEST_P(AdamwKernel, MultipliesTheGradientByItsFactor) {
  const auto start = torch::randn({5000}, torch::device(device())), gradient = torch::randn_like(start);
  auto s = settings;
  s.gradient_factor = 0.3;
  Shard ours(start, torch::kFloat32, 0);
  ours.step(gradient, s);
  Reference reference(start);
  reference.step(gradient.to(torch::kFloat64) * 0.3);
  EXPECT_LE(error_against(ours.weights, reference.weights.detach()), 1e-6 * largest(start));
}

TEST(AdamwStep, BiasCorrectionsHoldAfterAMillionSteps) {
  auto s = settings;
  s.step = 1'000'000;
  const auto step = make_adamw_step(s);
  EXPECT_EQ(step.step_size, static_cast<float>(settings.lr));
  EXPECT_EQ(step.inverse_root, 1.f);
}

// In float32 1 - 0.999 would be 1.3e-5 too little.
TEST(AdamwStep, RoundsOnce) {
  const auto step = make_adamw_step(settings);
  EXPECT_EQ(step.one_minus_beta2, 0.001f);
  EXPECT_EQ(step.decay, static_cast<float>(1 - 3e-3 * 0.05));
  EXPECT_EQ(step.step_size, 0.03f) << "of a first step: lr / (1 - beta1)";
}

TEST_P(AdamwKernel, GivesTheSameBitsAgain) {
  const auto start = torch::randn({50001}, torch::device(device()));
  const auto gradient = torch::randn_like(start).to(torch::kBFloat16);
  expect_same_bits(is_cpu(), [&] {
    Shard ours(start, torch::kBFloat16, 0);
    ours.step(gradient);
    ours.step(gradient);
    return ours.tensors();
  });
}

using SquareSum = OnDevice;

// 5 million: every thread of every block has several elements.
TEST_P(SquareSum, IsThatOfDoubles) {
  for (const std::int64_t n : {0, 1, 7, 8, 9, 2047, 2049, 4097, 100003, 5'000'003}) {
    for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
      const auto gradient = torch::randn({n}, torch::device(device())).to(type);
      const auto sum = torch::empty({}, gradient.options().dtype(torch::kFloat64));
      square_sum(gradient, sum);
      const double exact = gradient.to(torch::kFloat64).square().sum().item<double>();
      EXPECT_NEAR(sum.item<double>(), exact, 1e-12 * exact) << n;
    }
  }
}

TEST_P(SquareSum, DependsNeitherOnTheOrderOfThreadsNorOnAlignment) {
  const auto gradient = torch::randn({300'001}, torch::device(device()));
  const auto of = [&](const Tensor& tensor) {
    const auto sum = torch::empty({1}, tensor.options().dtype(torch::kFloat64));
    square_sum(tensor, sum);
    return sum;
  };
  expect_same_bits(is_cpu(), [&] { return std::vector<Tensor>{of(gradient)}; });
  EXPECT_TRUE(torch::equal(of(gradient), of(at_offset(gradient, 1))));
}

TEST_P(SquareSum, HoldsWhereSquaresOverflowFloat32) {
  const auto gradient = torch::full({10}, 1e30, torch::device(device()));
  const auto sum = torch::empty({}, gradient.options().dtype(torch::kFloat64));
  square_sum(gradient, sum);
  EXPECT_NEAR(sum.item<double>(), 1e61, 1e55);
}

TEST_P(AdamwKernel, RefusesWhatDoesNotFit) {
  const auto start = torch::randn({10}, torch::device(device()));
  Shard ours(start, torch::kFloat32, 0);
  expect_error([&] { ours.step(start.to(torch::kFloat16)); }, "gradient has type Half");
  expect_error([&] { ours.step(start.narrow(0, 0, 9)); }, "weights has shape [10], not [9]");
  ours.ema = start.to(torch::kBFloat16);
  expect_error([&] { ours.step(start); }, "ema has type BFloat16");
}

MILLRACE_TEST_KERNELS(AdamwKernel);
MILLRACE_TEST_KERNELS(SquareSum);

}  // namespace
}  // namespace millrace::kernels
