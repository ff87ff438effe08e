#pragma once
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "millrace/models/resample.h"
#include "millrace/models/resnet.h"
#include "millrace/models/transformer.h"
#include "millrace/nn/layers.h"

// The U-Net's three kinds of blocks. The cross-attention variants of diffusers' classes are the same block with
// transformers after its resnets.
namespace millrace {

// What all blocks of one level share.
struct UNetBlockOptions {
  ResnetOptions resnet;                           // its channels are set by the block
  std::optional<TransformerOptions> transformer;  // none: no attention in this block
  std::vector<std::int64_t> transformer_layers;   // of each transformer in the block
};

// Resnets (and transformers), then half the size: DownBlock2D, CrossAttnDownBlock2D.
class DownBlock2DImpl : public torch::nn::Module {
 public:
  DownBlock2DImpl(const UNetBlockOptions& options, std::int64_t in_channels, std::int64_t out_channels,
                  std::int64_t layers, std::optional<std::int64_t> downsample_padding);
  // Every feature map on the way, the last one is the block's output: they are the skip connections.
  std::vector<torch::Tensor> forward(torch::Tensor x, const torch::Tensor& time, const torch::Tensor& context);

 private:
  nn::List<Transformer2DModel> attentions;  // null without
  nn::List<ResnetBlock2D> resnets;
  nn::List<Downsample2D> downsamplers;  // null in the last block
};
TORCH_MODULE(DownBlock2D);

// Resnet, transformer, resnet: UNetMidBlock2DCrossAttn; without a transformer one resnet: UNetMidBlock2D.
class UNetMidBlock2DImpl : public torch::nn::Module {
 public:
  UNetMidBlock2DImpl(const UNetBlockOptions& options, std::int64_t channels);
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& time, const torch::Tensor& context);

 private:
  nn::List<Transformer2DModel> attentions;  // null without
  nn::List<ResnetBlock2D> resnets;
};
TORCH_MODULE(UNetMidBlock2D);

// Resnets over [x, skip] (and transformers), then twice the size: UpBlock2D, CrossAttnUpBlock2D.
class UpBlock2DImpl : public torch::nn::Module {
 public:
  // `skip_channels` of each layer, in the order in which they are used.
  UpBlock2DImpl(const UNetBlockOptions& options, std::int64_t in_channels, std::int64_t out_channels,
                const std::vector<std::int64_t>& skip_channels, bool upsample);
  // `skips` in the order of the down blocks, used from the back; `size` of the output, twice the input's by default.
  torch::Tensor forward(torch::Tensor x, std::vector<torch::Tensor> skips, const torch::Tensor& time,
                        const torch::Tensor& context, std::optional<Extent> size);

  std::size_t layers() const { return resnets->size(); }
  bool upsamples() const { return upsamplers != nullptr; }

 private:
  nn::List<Transformer2DModel> attentions;  // null without
  nn::List<ResnetBlock2D> resnets;
  nn::List<Upsample2D> upsamplers;  // null in the last block
};
TORCH_MODULE(UpBlock2D);

}  // namespace millrace
