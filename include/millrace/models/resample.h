#pragma once
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>

#include "millrace/nn/layers.h"

namespace millrace {

// Rows and columns of a feature map.
struct Extent {
  std::int64_t height, width;
};

// (B, C, h, w) -> half the size, by a 3x3 convolution of stride 2. With padding 0 one row and column of zeros come to
// the bottom and right only, as in the VAE.
class Downsample2DImpl : public torch::nn::Module {
 public:
  Downsample2DImpl(std::int64_t channels, std::int64_t padding);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  std::int64_t padding_;
  nn::Conv2d conv;
};
TORCH_MODULE(Downsample2D);

// (B, C, h, w) -> twice the size, or exactly `size`: nearest neighbour, then a 3x3 convolution.
class Upsample2DImpl : public torch::nn::Module {
 public:
  explicit Upsample2DImpl(std::int64_t channels);
  torch::Tensor forward(const torch::Tensor& x, std::optional<Extent> size = {});

 private:
  nn::Conv2d conv;
};
TORCH_MODULE(Upsample2D);

}  // namespace millrace
