#pragma once
#include <torch/types.h>

#include <cstdint>

// value * gelu(gate) in one pass over memory, on the CPU.
namespace millrace::nn {

struct GegluRows {
  std::int64_t rows, channels;  // of the output; channels: a multiple of the registers' width
};

struct GegluKernel {
  // x (rows, [value | gate]) -> y (rows, C), and back.
  void (*forward)(const GegluRows& shape, const float* x, float* y);
  void (*backward)(const GegluRows& shape, const float* x, const float* y_grad, float* x_grad);
};

// As `geglu`, for contiguous f32 on the CPU, with a multiple of 8 channels. Differentiable once.
bool suits_geglu_kernel(const torch::Tensor& x);
torch::Tensor geglu_in_one_pass(const torch::Tensor& x);

}  // namespace millrace::nn
