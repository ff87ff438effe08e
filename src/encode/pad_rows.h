#pragma once
#include <torch/types.h>

namespace millrace {

// Repeats the last row until there are `rows`.
inline torch::Tensor pad_rows(const torch::Tensor& tensor, std::int64_t rows) {
  const auto missing = rows - tensor.size(0);
  if (missing == 0) return tensor;
  auto sizes = tensor.sizes().vec();
  sizes[0] = missing;
  return torch::cat({tensor, tensor.slice(0, tensor.size(0) - 1).expand(sizes)});
}

}  // namespace millrace
