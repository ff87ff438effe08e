#pragma once
#include <torch/types.h>

#include <cstdint>

namespace millrace::nn {

// x (B, in, h, w), weight (out, in, k, k), bias (out) -> (B, out, h', w'), zero padding.
torch::Tensor conv2d(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                     std::int64_t stride, std::int64_t padding);

}  // namespace millrace::nn
