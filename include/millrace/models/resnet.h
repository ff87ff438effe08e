#pragma once
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "millrace/nn/activation.h"
#include "millrace/nn/layers.h"

namespace millrace {

struct ResnetOptions {
  std::int64_t in_channels, out_channels;
  std::int64_t time_channels = 0;  // 0: no time input
  std::int64_t groups = 32;
  double eps = 1e-5;
  nn::Activation activation = nn::Activation::silu;
  double dropout = 0;
  bool scale_shift = false;  // the time scales and shifts after the second norm, instead of being added before it
  double output_scale = 1;   // the sum is divided by it
};

// Two convolutions with a shortcut: norm, activation, conv, + time, norm, activation, conv, + input.
class ResnetBlock2DImpl : public torch::nn::Module {
 public:
  explicit ResnetBlock2DImpl(const ResnetOptions& options);
  // x (B, in, h, w); time (B, time_channels), already activated, or undefined without time input -> (B, out, h, w).
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& time = {});

 private:
  torch::Tensor convolved_and_activated(const torch::Tensor& x, const torch::Tensor& time);

  ResnetOptions options_;
  nn::GroupNorm norm1, norm2;
  nn::Conv2d conv1, conv2, conv_shortcut{nullptr};  // the shortcut only where the number of channels changes
  nn::Linear time_emb_proj{nullptr};
};
TORCH_MODULE(ResnetBlock2D);

}  // namespace millrace
