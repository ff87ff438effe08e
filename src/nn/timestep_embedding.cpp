#include "millrace/nn/timestep_embedding.h"

#include <cmath>

namespace millrace::nn {

torch::Tensor timestep_embedding(const torch::Tensor& timestep, std::int64_t channels, bool flip_sin_to_cos,
                                 double freq_shift) {
  const std::int64_t half = channels / 2;
  const auto options = torch::dtype(torch::kFloat32).device(timestep.device());
  const auto exponent = at::arange(half, options) * -std::log(10000.0) / (static_cast<double>(half) - freq_shift);
  const auto angle = timestep.to(torch::kFloat32).unsqueeze(1) * at::exp(exponent).unsqueeze(0);
  const auto sine = at::sin(angle), cosine = at::cos(angle);
  const auto embedding = flip_sin_to_cos ? at::cat({cosine, sine}, 1) : at::cat({sine, cosine}, 1);
  return channels % 2 == 0 ? embedding : at::constant_pad_nd(embedding, {0, 1});
}

}  // namespace millrace::nn
