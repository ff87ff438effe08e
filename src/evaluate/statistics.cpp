#include "millrace/evaluate/statistics.h"

#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/core/philox.h"

namespace millrace {
namespace {

// Of a symmetric positive semi-definite matrix; rounding may have made eigenvalues a little negative.
torch::Tensor square_root(const torch::Tensor& matrix) {
  const auto [values, vectors] = at::linalg_eigh(matrix);
  return at::matmul(vectors * values.clamp_min(0).sqrt(), vectors.t());
}

torch::Tensor kernel(const torch::Tensor& x, const torch::Tensor& y) {
  return (at::matmul(x, y.t()) / static_cast<double>(x.size(1)) + 1).pow(3);
}

double unbiased_discrepancy(const torch::Tensor& x, const torch::Tensor& y) {
  const auto m = static_cast<double>(x.size(0));
  const auto xx = kernel(x, x), yy = kernel(y, y);
  const double within = (xx.sum() - xx.trace() + yy.sum() - yy.trace()).item<double>() / (m * (m - 1));
  return within - 2 * kernel(x, y).sum().item<double>() / (m * m);
}

}  // namespace

FeatureStatistics statistics_of(const torch::Tensor& features) {
  ensure(features.dim() == 2 && features.size(0) >= 2, "statistics need two rows");
  const auto x = features.to(torch::kFloat64);
  const auto mean = x.mean(0);
  const auto centred = x - mean;
  return {mean, at::matmul(centred.t(), centred) / static_cast<double>(x.size(0) - 1)};
}

double frechet_distance(const FeatureStatistics& a, const FeatureStatistics& b) {
  const torch::NoGradGuard no_grad;
  const auto root = square_root(a.covariance);
  const auto product = at::matmul(at::matmul(root, b.covariance), root);
  const auto values = at::linalg_eigvalsh((product + product.t()) / 2);
  const auto difference = a.mean - b.mean;
  const double trace = (a.covariance.trace() + b.covariance.trace()).item<double>();
  return difference.dot(difference).item<double>() + trace - 2 * values.clamp_min(0).sqrt().sum().item<double>();
}

// `count` rows drawn by (seed, subset, side).
static torch::Tensor draw_rows(const torch::Tensor& rows, std::int64_t count, std::uint64_t seed, std::uint64_t subset,
                               std::uint32_t side) {
  if (rows.size(0) == count) return rows;
  std::vector<std::uint32_t> order(static_cast<std::size_t>(rows.size(0)));
  std::iota(order.begin(), order.end(), 0U);
  keyed_shuffle({seed, subset, side}, Purpose::shuffle, order);
  auto index = torch::empty({count}, torch::kInt64);
  std::copy_n(order.begin(), count, index.data_ptr<std::int64_t>());
  return rows.index_select(0, index);
}

KernelDistance kernel_distance(const torch::Tensor& x, const torch::Tensor& y, std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  ensure(x.size(0) >= 2 && y.size(0) >= 2, "a kernel distance needs two rows of either side");
  const auto a = x.to(torch::kFloat64), b = y.to(torch::kFloat64);
  const auto size = std::min<std::int64_t>({1000, a.size(0), b.size(0)});
  const bool all_alike = a.size(0) == size && b.size(0) == size;  // every subset is the whole
  constexpr std::uint64_t subsets = 100;
  std::vector<double> found;
  for (std::uint64_t subset = 0; subset < (all_alike ? 1 : subsets); ++subset)
    found.push_back(unbiased_discrepancy(draw_rows(a, size, seed, subset, 0), draw_rows(b, size, seed, subset, 1)));
  const auto count = static_cast<double>(found.size());
  const double mean = std::accumulate(found.begin(), found.end(), 0.0) / count;
  double squares = 0;
  for (const double value : found) squares += (value - mean) * (value - mean);
  return {mean, std::sqrt(squares / count)};
}

}  // namespace millrace
