#include "millrace/evaluate/reference.h"

#include "millrace/core/error.h"
#include "millrace/io/npz.h"
#include "millrace/models/tensors.h"

namespace millrace {
namespace {

torch::Tensor tensor_of(const NpzArray& array) {
  return torch::tensor(at::ArrayRef<double>(array.values), torch::kFloat64).view(array.shape);
}

FeatureReference reference_of_rows(const torch::Tensor& features, const std::filesystem::path& file) {
  if (features.size(0) < 2) fail(Exit::io, "evaluate.reference: {} holds one row alone", file.string());
  return {features, statistics_of(features)};
}

// clean-fid's files for KID have `feats`, those for FID `mu` and `sigma`.
FeatureReference reference_of_npz(const std::filesystem::path& file) {
  const auto arrays = read_npz(file);
  if (const auto found = arrays.find("feats"); found != arrays.end()) {
    if (found->second.shape.size() != 2) fail(Exit::io, "evaluate.reference: {}: feats is to be (N, D)", file.string());
    return reference_of_rows(tensor_of(found->second).to(torch::kFloat32), file);
  }
  for (const char* name : {"mu", "sigma"})
    if (!arrays.contains(name))
      fail(Exit::io, "evaluate.reference: {} holds no floating-point {}", file.string(), name);
  const auto mu = tensor_of(arrays.at("mu")), sigma = tensor_of(arrays.at("sigma"));
  if (mu.dim() != 1 || sigma.dim() != 2 || sigma.size(0) != mu.size(0) || sigma.size(1) != mu.size(0))
    fail(Exit::io, "evaluate.reference: {}: mu is to be (D) and sigma (D, D)", file.string());
  return {std::nullopt, {mu, sigma}};
}

FeatureReference reference_of_features(const std::filesystem::path& file) {
  auto tensors = read_tensors(file);
  const auto features = tensors.find("features");
  if (features == tensors.end() || features->second.dim() != 2 || !features->second.is_floating_point())
    fail(Exit::io, "evaluate.reference: {} holds no floating-point tensor features (N, D)", file.string());
  return reference_of_rows(features->second, file);
}

}  // namespace

FeatureReference read_reference_file(const std::filesystem::path& file) {
  if (!std::filesystem::is_regular_file(file))
    fail(Exit::io, "evaluate.reference: {}: no such file or folder", file.string());
  const auto reference = file.extension() == ".npz" ? reference_of_npz(file) : reference_of_features(file);
  if (!reference.statistics.mean.isfinite().all().item<bool>() ||
      !reference.statistics.covariance.isfinite().all().item<bool>())
    fail(Exit::io, "evaluate.reference: {} holds numbers that are not finite", file.string());
  return reference;
}

}  // namespace millrace
