#pragma once
#include <torch/types.h>

#include <cstdint>

// Distances between sets of feature vectors, in double precision.
namespace millrace {

// Mean f64 (D) and covariance f64 (D, D) with N - 1, as numpy's cov.
struct FeatureStatistics {
  torch::Tensor mean, covariance;
};

// Of features (N, D), N >= 2.
FeatureStatistics statistics_of(const torch::Tensor& features);

// |m1 - m2|^2 + tr(s1 + s2 - 2 (s1 s2)^(1/2)) (Heusel et al., "GANs Trained by a Two Time-Scale Update Rule Converge to
// a Local Nash Equilibrium"). The root's trace is that of (s1^(1/2) s2 s1^(1/2))^(1/2), which is symmetric, so nothing
// has to be added to covariances that are singular.
double frechet_distance(const FeatureStatistics& a, const FeatureStatistics& b);

struct KernelDistance {
  double mean, std;
};

// The unbiased squared maximum mean discrepancy with the kernel (x.y / D + 1)^3 (Binkowski et al., "Demystifying MMD
// GANs"): mean and standard deviation over 100 subsets of min(1000, rows of either) rows, drawn without replacement by
// `seed`. x (N, D), y (M, D), N and M >= 2.
KernelDistance kernel_distance(const torch::Tensor& x, const torch::Tensor& y, std::uint64_t seed);

}  // namespace millrace
