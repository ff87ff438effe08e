#pragma once
#include <torch/types.h>

#include <cstdint>
#include <utility>

// The kernels on tensors, with gradients. Tensors on a GPU go to the CUDA kernels and LibTorch's current stream,
// tensors of the host to their twins, which are there for tests. Types are float32, bfloat16 and float16; parameters
// need not have the type of x. A tensor that may be left out is undefined then. What does not fit is an error
// (c10::Error) that names the argument. There are no second derivatives.
namespace millrace::kernels {

// x (B, C, h, w) channels-last -> the same: silu(group_norm(x + time + x_bias) weight + bias); time (B, C) and x_bias
// (C) or undefined, SiLU if `with_silu`. For backward it keeps x and two float32 numbers per group.
//
// Those named `beside` give x as well: what else x is used for may take that one, and its gradient is added in the
// norm's own kernel.
std::pair<torch::Tensor, torch::Tensor> group_norm_silu_beside(const torch::Tensor& x, const torch::Tensor& time,
                                                               const torch::Tensor& x_bias, const torch::Tensor& weight,
                                                               const torch::Tensor& bias, std::int64_t groups,
                                                               double eps, bool with_silu = true);

// x + bias + residual in one pass: x (..., C), or of four dimensions (B, C, h, w) channels-last; bias (C); residual as
// x or undefined.
torch::Tensor add_bias(const torch::Tensor& x, const torch::Tensor& bias, const torch::Tensor& residual = {});
// y (..., C) itself, to which a matrix product has added the bias already: the bias's gradient comes from our kernel.
torch::Tensor with_bias_gradient(const torch::Tensor& y, const torch::Tensor& bias);

// value * gelu(gate) of x + bias = (..., [value | gate]), gelu by erf to 1e-7, not by tanh; bias (2 C) or undefined. It
// keeps x.
torch::Tensor geglu(const torch::Tensor& x, const torch::Tensor& bias = {});

// (..., C) -> the same.
std::pair<torch::Tensor, torch::Tensor> layer_norm_beside(const torch::Tensor& x, const torch::Tensor& weight,
                                                          const torch::Tensor& bias, double eps);
inline torch::Tensor layer_norm(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                                double eps) {
  return layer_norm_beside(x, weight, bias, eps).second;
}
// s = x + residual and its layer_norm.
std::pair<torch::Tensor, torch::Tensor> add_layer_norm(const torch::Tensor& x, const torch::Tensor& residual,
                                                       const torch::Tensor& weight, const torch::Tensor& bias,
                                                       double eps);

// sum, float32 and dense, += gradient of the same sizes and strides; or = gradient, if it `replaces`.
void sum_gradient(const torch::Tensor& sum, const torch::Tensor& gradient, bool replaces);

// Unit normals, float32 of `sizes`, on the device of `words`: int32 (B, 5), the words of core/philox.h's philox_words
// of each sample. Row i is fill_normal of its key and purpose, the same bits on every device.
torch::Tensor unit_normals(const torch::Tensor& words, at::IntArrayRef sizes);

// sum, float64 of one element, = sum of the squares of a flat gradient, float32 or bfloat16.
void square_sum(const torch::Tensor& gradient, const torch::Tensor& sum);

// Of an update by AdamW.
struct AdamwSettings {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  double ema_decay = 0;
  double gradient_factor = 1;  // gradients are multiplied by this first
  std::int64_t step = 1;       // counted from 1
};
struct AdamwShard {                            // flat, of one length
  torch::Tensor gradient;                      // float32 or bfloat16
  torch::Tensor weights, exp_avg, exp_avg_sq;  // float32
  torch::Tensor ema;                           // float32 or undefined
  torch::Tensor published;                     // any of the three types, or undefined
};
// Weights, moments, EMA and `published` in one pass.
void adamw_step(const AdamwShard& shard, const AdamwSettings& settings);

}  // namespace millrace::kernels
