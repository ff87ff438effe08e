#pragma once
#include <torch/types.h>

#include <cstdint>

// Group norm of channels-last images on the CPU, with the sum before it and SiLU behind it, in two passes over memory.
// LibTorch has one for this layout that takes five times as long as that for the other.
namespace millrace::nn {

// Neighbouring pixels (P, C) of an image; C: a multiple of the registers' width.
struct PixelStrip {
  std::int64_t pixels, channels;
};

// v = (x - shift) scale + beta of an image, (C) each: the norm as one multiplication.
struct ChannelNorm {
  const float *shift, *scale, *beta;
};

// The passes over a strip, as group_norm_strip.h describes them.
struct GroupNormKernel {
  void (*find_moments)(const PixelStrip& strip, const float* x, float* moments);
  void (*normalize)(const PixelStrip& strip, const float* x, const ChannelNorm& norm, bool with_silu, float* y);
  void (*add_gradient_sums)(const PixelStrip& strip, const float* x, const float* y_grad, const ChannelNorm& norm,
                            bool with_silu, float* v_grad, float* sums);
  void (*finish_gradient)(const PixelStrip& strip, const float* x, const ChannelNorm& norm, const float* x_factor,
                          const float* offset, float* grad);
};

// What the kernel takes: x (B, C, h, w) in f32 on the CPU, channels-last, C a multiple of 8.
bool suits_group_norm_kernel(const torch::Tensor& x);
// silu(group_norm(x + time)), SiLU if asked for; time (B, C) or undefined, weight and bias (C), eps as LibTorch's -> as
// x. Differentiable once.
torch::Tensor group_norm_of_pixels(const torch::Tensor& x, const torch::Tensor& time, const torch::Tensor& weight,
                                   const torch::Tensor& bias, std::int64_t groups, double eps, bool with_silu);

}  // namespace millrace::nn
