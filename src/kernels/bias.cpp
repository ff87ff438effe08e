#include "bias.h"

#include "bias_kernel.h"

namespace millrace::kernels {

std::int64_t bias_gradient_workspace(std::int64_t rows, std::int64_t channels) {
  const auto splits = most_splits(rows, channels, /*images=*/1, blocks_of_bias_sums);
  return splits * channels * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace millrace::kernels
