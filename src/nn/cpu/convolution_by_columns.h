#pragma once
#include <torch/types.h>

#include <cstdint>

namespace millrace::nn {

// at::conv2d as one matrix product over the whole batch: x (B, in, h, w), weight (out, in, k, k), bias (out)
// -> (B, out, h', w'), zero padding. With gradients.
torch::Tensor convolution_by_columns(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                                     std::int64_t stride, std::int64_t padding);

}  // namespace millrace::nn
