#pragma once
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "millrace/nn/layers.h"

namespace millrace {

// Multi-head attention between tokens (B, T, channels) and a context (B, S, context_channels).
class AttentionImpl : public torch::nn::Module {
 public:
  AttentionImpl(std::int64_t channels, std::int64_t context_channels, std::int64_t heads);
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& context);

 private:
  std::int64_t heads_;
  nn::Linear to_q, to_k, to_v;
  nn::List<nn::Linear> to_out;
};
TORCH_MODULE(Attention);

// (B, T, C) -> the same through 4 C gated channels.
class FeedForwardImpl : public torch::nn::Module {
 public:
  explicit FeedForwardImpl(std::int64_t channels);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  nn::Linear widen, narrow;
};
TORCH_MODULE(FeedForward);

struct TransformerOptions {
  std::int64_t heads;
  std::int64_t context_channels;
  std::int64_t layers = 1;
  std::int64_t groups = 32;
  bool linear_projection = false;     // proj_in and proj_out are linear layers instead of 1x1 convolutions
  bool only_cross_attention = false;  // the first attention, too, looks at the context
};

// Attention over the image's tokens, attention over the context, feed-forward; each behind a layer norm, each added.
class BasicTransformerBlockImpl : public torch::nn::Module {
 public:
  BasicTransformerBlockImpl(std::int64_t channels, const TransformerOptions& options);
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& context);

 private:
  bool only_cross_attention_;
  nn::LayerNorm norm1, norm2, norm3;
  Attention attn1, attn2;
  FeedForward ff;
};
TORCH_MODULE(BasicTransformerBlock);

// A linear layer over tokens whose weight is (out, in), or (out, in, 1, 1) in models that call it a 1x1 convolution.
class TokenProjectionImpl : public nn::Layer {
 public:
  TokenProjectionImpl(std::int64_t in, std::int64_t out, bool as_convolution);
  torch::Tensor forward(const torch::Tensor& x) {
    return with_parameters({weight}, [&] { return nn::linear(x, weight.flatten(1), bias); });
  }

 private:
  torch::Tensor weight, bias;
};
TORCH_MODULE(TokenProjection);

// Transformer blocks over the pixels of (B, C, h, w), with context (B, S, context_channels) -> (B, C, h, w).
class Transformer2DModelImpl : public torch::nn::Module {
 public:
  Transformer2DModelImpl(std::int64_t channels, const TransformerOptions& options);
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& context);

 private:
  nn::GroupNorm norm;
  TokenProjection proj_in, proj_out;
  nn::List<BasicTransformerBlock> transformer_blocks;
};
TORCH_MODULE(Transformer2DModel);

}  // namespace millrace
