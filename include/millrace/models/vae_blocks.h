#pragma once
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

#include "millrace/models/resample.h"
#include "millrace/models/resnet.h"
#include "millrace/nn/activation.h"
#include "millrace/nn/layers.h"

namespace millrace {

// What the two halves of an autoencoder share.
struct CoderOptions {
  std::vector<std::int64_t> channels;  // per level, from the image to the latents
  std::int64_t layers_per_block = 1;   // of the encoder; the decoder has one more
  std::int64_t groups = 32;
  nn::Activation activation = nn::Activation::silu;
  bool mid_attention = true;
};

// One-headed attention over all pixels of (B, C, h, w), added to them.
class VaeAttentionImpl : public torch::nn::Module {
 public:
  VaeAttentionImpl(std::int64_t channels, std::int64_t groups);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  nn::GroupNorm group_norm;
  nn::Linear to_q, to_k, to_v;
  nn::List<nn::Linear> to_out;
};
TORCH_MODULE(VaeAttention);

// Resnet, attention, resnet.
class VaeMidBlockImpl : public torch::nn::Module {
 public:
  explicit VaeMidBlockImpl(const CoderOptions& options);
  torch::Tensor forward(torch::Tensor x);

 private:
  nn::List<VaeAttention> attentions;  // null without
  nn::List<ResnetBlock2D> resnets;
};
TORCH_MODULE(VaeMidBlock);

// Resnets, then half the size.
class DownEncoderBlock2DImpl : public torch::nn::Module {
 public:
  DownEncoderBlock2DImpl(const CoderOptions& options, std::int64_t in_channels, std::int64_t out_channels,
                         bool downsample);
  torch::Tensor forward(torch::Tensor x);

 private:
  nn::List<ResnetBlock2D> resnets;
  nn::List<Downsample2D> downsamplers;  // null in the last block
};
TORCH_MODULE(DownEncoderBlock2D);

// Resnets, then twice the size.
class UpDecoderBlock2DImpl : public torch::nn::Module {
 public:
  UpDecoderBlock2DImpl(const CoderOptions& options, std::int64_t in_channels, std::int64_t out_channels, bool upsample);
  torch::Tensor forward(torch::Tensor x);

 private:
  nn::List<ResnetBlock2D> resnets;
  nn::List<Upsample2D> upsamplers;  // null in the last block
};
TORCH_MODULE(UpDecoderBlock2D);

// (B, in, H, W) -> (B, out, h, w).
class VaeEncoderImpl : public torch::nn::Module {
 public:
  VaeEncoderImpl(const CoderOptions& options, std::int64_t in_channels, std::int64_t out_channels);
  torch::Tensor forward(torch::Tensor x);

 private:
  nn::Conv2d conv_in;
  nn::List<DownEncoderBlock2D> down_blocks;
  VaeMidBlock mid_block;
  nn::GroupNorm conv_norm_out;
  nn::Conv2d conv_out;
};
TORCH_MODULE(VaeEncoder);

// (B, in, h, w) -> (B, out, H, W).
class VaeDecoderImpl : public torch::nn::Module {
 public:
  VaeDecoderImpl(const CoderOptions& options, std::int64_t in_channels, std::int64_t out_channels);
  torch::Tensor forward(torch::Tensor x);

 private:
  nn::Conv2d conv_in;
  VaeMidBlock mid_block;
  nn::List<UpDecoderBlock2D> up_blocks;
  nn::GroupNorm conv_norm_out;
  nn::Conv2d conv_out;
};
TORCH_MODULE(VaeDecoder);

}  // namespace millrace
