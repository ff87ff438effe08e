#pragma once
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

#include "millrace/models/unet_blocks.h"
#include "millrace/models/unet_config.h"
#include "millrace/nn/layers.h"

namespace millrace {

// The sinusoidal embedding of the timestep through two linear layers.
class TimestepEmbeddingImpl : public torch::nn::Module {
 public:
  explicit TimestepEmbeddingImpl(const UNet2DConditionConfig& config);
  // (B, block_out_channels[0]) -> (B, time_channels).
  torch::Tensor forward(const torch::Tensor& x);

 private:
  nn::Activation activation_;
  std::optional<nn::Activation> post_activation_;
  nn::Linear linear_1, linear_2;
};
TORCH_MODULE(TimestepEmbedding);

// Stable Diffusion's U-Net (Rombach et al., "High-resolution image synthesis with latent diffusion models"), with
// diffusers' names: named_parameters() is the state dict's key list.
class UNet2DConditionModelImpl : public torch::nn::Module {
 public:
  explicit UNet2DConditionModelImpl(const UNet2DConditionConfig& config);

  // sample (B, in_channels, h, w), timestep (B), (1) or (), whole or fractional, encoder_hidden_states (B, S, D) ->
  // (B, out_channels, h, w). h and w need not be multiples of anything.
  torch::Tensor forward(torch::Tensor sample, const torch::Tensor& timestep,
                        const torch::Tensor& encoder_hidden_states);

  const UNet2DConditionConfig& config() const { return config_; }
  // Keeps only the inputs of each block for backward and computes the rest again.
  void set_gradient_checkpointing(bool on) { checkpointing_ = on; }

 private:
  using Tensors = std::vector<torch::Tensor>;

  UNetBlockOptions block_options(bool cross_attention, std::size_t level) const;
  std::vector<std::int64_t> add_down_blocks();
  void add_mid_block();
  void add_up_blocks(std::vector<std::int64_t> skip_channels);
  torch::Tensor embed_time(const torch::Tensor& sample, const torch::Tensor& timestep);
  template <class Block>
  Tensors run_block(Block block, const Tensors& inputs);

  UNet2DConditionConfig config_;
  bool checkpointing_ = false;
  nn::Conv2d conv_in;
  TimestepEmbedding time_embedding;
  nn::List<DownBlock2D> down_blocks;
  UNetMidBlock2D mid_block{nullptr};
  nn::List<UpBlock2D> up_blocks;
  nn::GroupNorm conv_norm_out;
  nn::Conv2d conv_out;
};
TORCH_MODULE(UNet2DConditionModel);

// The names of all parameters in the order in which forward first uses them. Backward completes their gradients from
// the last to the first.
std::vector<std::string> execution_order(UNet2DConditionModelImpl& unet);

}  // namespace millrace
