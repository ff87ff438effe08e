#include "millrace/kernels/ops.h"
#include "testing.h"

namespace millrace::kernels {
namespace {

using Gradient = OnDevice;

// Conversion and one addition of float32 are exact, so the bits are LibTorch's. Sizes with and without a tail, and
// places in a bucket that are not aligned.
TEST_P(Gradient, GoesIntoTheSumAsByLibTorch) {
  for (const auto type : all_types) {
    for (const int n : {1, 7, 8, 2048, 2051, 70001}) {
      for (const int first : {0, 1, 4}) {
        const auto bucket = torch::randn({n + first}, torch::device(device()));
        const auto gradient = torch::randn({n + first}, torch::device(device())).to(type).narrow(0, first, n);
        const auto sum = bucket.clone().narrow(0, first, n),
                   expected = bucket.narrow(0, first, n) + gradient.to(torch::kFloat32);
        sum_gradient(sum, gradient, /*replaces=*/false);
        EXPECT_TRUE(torch::equal(sum, expected)) << type << " " << n << " from " << first;
        sum_gradient(sum, gradient, /*replaces=*/true);
        EXPECT_TRUE(torch::equal(sum, gradient.to(torch::kFloat32))) << type << " " << n << " from " << first;
      }
    }
  }
}

// What was in the sum before is not even read.
TEST_P(Gradient, ReplacesWhatIsNoNumber) {
  const auto sum = torch::full({19}, std::nan(""), torch::device(device()));
  sum_gradient(sum, torch::ones_like(sum), /*replaces=*/true);
  EXPECT_TRUE(torch::equal(sum, torch::ones_like(sum)));
}

TEST_P(Gradient, OfAConvolutionLiesAsItsSum) {
  const auto laid = [&] {
    return torch::randn({8, 4, 3, 3}, torch::device(device())).contiguous(torch::MemoryFormat::ChannelsLast);
  };
  const auto sum = laid(), gradient = laid(), expected = sum + gradient;
  sum_gradient(sum, gradient, /*replaces=*/false);
  EXPECT_TRUE(torch::equal(sum, expected));
}

TEST_P(Gradient, RefusesWhatDoesNotFit) {
  const auto sum = torch::zeros({4, 6}, torch::device(device()));
  expect_error([&] { sum_gradient(sum, sum.narrow(1, 0, 5), true); }, "gradient has shape");
  expect_error([&] { sum_gradient(sum, torch::zeros({6, 4}, sum.options()).t(), true); }, "gradient has strides");
  expect_error([&] { sum_gradient(sum.narrow(1, 0, 5), sum.narrow(1, 0, 5), true); }, "sum has gaps");
  expect_error([&] { sum_gradient(sum.to(torch::kBFloat16), sum, true); }, "sum has type BFloat16");
}

MILLRACE_TEST_KERNELS(Gradient);

}  // namespace
}  // namespace millrace::kernels
