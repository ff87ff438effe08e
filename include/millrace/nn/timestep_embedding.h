#pragma once
#include <torch/types.h>

#include <cstdint>

namespace millrace::nn {

// Sinusoidal embedding of timesteps (B), whole or fractional, into f32 (B, channels) (Ho et al., "Denoising diffusion
// probabilistic models"): t f_i with f_i = 10000^(-i / (channels/2 - freq_shift)), as [sin | cos], or [cos | sin] when
// flipped; an odd last channel is zero.
torch::Tensor timestep_embedding(const torch::Tensor& timestep, std::int64_t channels, bool flip_sin_to_cos,
                                 double freq_shift);

}  // namespace millrace::nn
