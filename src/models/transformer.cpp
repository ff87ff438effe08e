#include "millrace/models/transformer.h"

#include <tuple>
#include <vector>

#include "millrace/nn/attention.h"

namespace millrace {

namespace {

constexpr double group_norm_eps = 1e-6;  // whatever the config's norm_eps says
constexpr double layer_norm_eps = 1e-5;
constexpr std::int64_t widening = 4;

// Fewer than the channels where the heads do not divide them.
std::int64_t inner_channels(std::int64_t channels, std::int64_t heads) {
  return heads * (channels / heads);
}

// (B, C, h, w) -> (B, h w, C).
torch::Tensor pixels_to_tokens(const torch::Tensor& x) {
  return x.permute({0, 2, 3, 1}).reshape({x.size(0), x.size(2) * x.size(3), x.size(1)});
}

// (B, h w, C) -> (B, C, h, w), a view.
torch::Tensor tokens_to_pixels(const torch::Tensor& tokens, std::int64_t height, std::int64_t width) {
  return tokens.view({tokens.size(0), height, width, tokens.size(2)}).permute({0, 3, 1, 2});
}

}  // namespace

AttentionImpl::AttentionImpl(std::int64_t channels, std::int64_t context_channels, std::int64_t heads)
    : heads_(heads),
      to_q(channels, channels, false),
      to_k(context_channels, channels, false),
      to_v(context_channels, channels, false),
      to_out(nn::make_list<nn::Linear>()) {
  register_module("to_q", to_q);
  register_module("to_k", to_k);
  register_module("to_v", to_v);
  register_module("to_out", to_out);
  to_out->add(nn::Linear(channels, channels));
}

torch::Tensor AttentionImpl::forward(const torch::Tensor& x, const torch::Tensor& context) {
  // Not in one expression: the order of arguments is the compiler's choice, and execution_order lists q, k, v.
  std::vector<torch::Tensor> qkv;
  if (context.is_same(x)) {
    qkv = nn::LinearImpl::together(x, {to_q.get(), to_k.get(), to_v.get()});
  } else {
    qkv.push_back(to_q(x));
    for (const auto& part : nn::LinearImpl::together(context, {to_k.get(), to_v.get()})) qkv.push_back(part);
  }
  return (*to_out)[0](nn::attention(qkv[0], qkv[1], qkv[2], heads_));
}

FeedForwardImpl::FeedForwardImpl(std::int64_t channels)
    : widen(channels, 2 * widening * channels), narrow(widening * channels, channels) {
  // In the state dict: net.0.proj and net.2; net.1 is a dropout that is never on.
  auto gate = std::make_shared<torch::nn::Module>();
  gate->register_module("proj", widen);
  auto net = std::make_shared<torch::nn::Module>();
  net->register_module("0", gate);
  net->register_module("2", narrow);
  register_module("net", net);
}

torch::Tensor FeedForwardImpl::forward(const torch::Tensor& x) {
  return narrow(widen->geglu(x));
}

BasicTransformerBlockImpl::BasicTransformerBlockImpl(std::int64_t channels, const TransformerOptions& o)
    : only_cross_attention_(o.only_cross_attention),
      norm1(channels, layer_norm_eps),
      norm2(channels, layer_norm_eps),
      norm3(channels, layer_norm_eps),
      attn1(channels, o.only_cross_attention ? o.context_channels : channels, o.heads),
      attn2(channels, o.context_channels, o.heads),
      ff(channels) {
  register_module("norm1", norm1);
  register_module("attn1", attn1);
  register_module("norm2", norm2);
  register_module("attn2", attn2);
  register_module("norm3", norm3);
  register_module("ff", ff);
}

torch::Tensor BasicTransformerBlockImpl::forward(torch::Tensor x, const torch::Tensor& context) {
  torch::Tensor normed;
  std::tie(x, normed) = norm1->beside(x);
  std::tie(x, normed) = norm2->add_norm(attn1(normed, only_cross_attention_ ? context : normed), x);
  std::tie(x, normed) = norm3->add_norm(attn2(normed, context), x);
  return ff(normed) + x;
}

TokenProjectionImpl::TokenProjectionImpl(std::int64_t in, std::int64_t out, bool as_convolution) {
  std::vector<std::int64_t> shape = {out, in};
  if (as_convolution) shape.insert(shape.end(), {1, 1});
  weight = register_parameter("weight", torch::empty(shape));
  bias = register_parameter("bias", torch::empty({out}));
}

Transformer2DModelImpl::Transformer2DModelImpl(std::int64_t channels, const TransformerOptions& o)
    : norm(o.groups, channels, group_norm_eps),
      proj_in(channels, inner_channels(channels, o.heads), !o.linear_projection),
      proj_out(inner_channels(channels, o.heads), channels, !o.linear_projection),
      transformer_blocks(nn::make_list<BasicTransformerBlock>()) {
  register_module("norm", norm);
  register_module("proj_in", proj_in);
  register_module("transformer_blocks", transformer_blocks);
  for (std::int64_t i = 0; i < o.layers; ++i) {
    transformer_blocks->add(BasicTransformerBlock(inner_channels(channels, o.heads), o));
  }
  register_module("proj_out", proj_out);
}

torch::Tensor Transformer2DModelImpl::forward(const torch::Tensor& x, const torch::Tensor& context) {
  const auto [input, normed] = norm->beside(x);
  auto tokens = proj_in(pixels_to_tokens(normed));
  for (auto& block : *transformer_blocks) tokens = block(tokens, context);
  // In this order the sum has the memory layout of x.
  return input + tokens_to_pixels(proj_out(tokens), x.size(2), x.size(3));
}

}  // namespace millrace
