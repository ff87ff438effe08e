#include "millrace/nn/layers.h"

#include <algorithm>

#include "cpu/group_norm.h"
#include "millrace/kernels/ops.h"
#include "millrace/nn/fused.h"

namespace millrace::nn {

// On GPUs the matrix product adds the bias on its way. The bias's gradient is by our own kernel: LibTorch's sum over
// rows runs at a fraction of the memory's speed.
torch::Tensor linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias) {
  if (!bias.defined() || x.numel() == 0 || !fused_kernels_on(x.device())) return at::linear(x, weight, bias);
  return kernels::with_bias_gradient(at::linear(x, weight, bias.detach()), bias);
}

// y (B, C, h, w) + bias (C) + residual, which may be undefined.
static torch::Tensor add_bias(const torch::Tensor& y, const torch::Tensor& bias, const torch::Tensor& residual) {
  constexpr auto channels_last = at::MemoryFormat::ChannelsLast;
  if (y.numel() > 0 && y.is_contiguous(channels_last) && (!residual.defined() || residual.is_contiguous(channels_last)))
    return kernels::add_bias(y, bias, residual);
  const auto with_bias = y + bias.view({bias.size(0), 1, 1});
  return residual.defined() ? with_bias + residual : with_bias;
}

LinearImpl::LinearImpl(std::int64_t in, std::int64_t out, bool with_bias) {
  weight = register_parameter("weight", torch::empty({out, in}));
  if (with_bias) bias = register_parameter("bias", torch::empty({out}));
}

// The joined weights are small beside x, which is read once in place of once for each layer, forward and backward.
std::vector<torch::Tensor> LinearImpl::together(const torch::Tensor& x, const std::vector<LinearImpl*>& layers) {
  const auto may_join = [](const auto* layer) { return !layer->bias.defined() && layer->parameters_stay(); };
  std::vector<torch::Tensor> parts;
  if (!fused_kernels_on(x.device()) || !std::ranges::all_of(layers, may_join)) {
    for (auto* layer : layers) parts.push_back(layer->forward(x));
    return parts;
  }
  std::vector<std::int64_t> sizes;
  for (auto* layer : layers) {
    layer->ask_for_parameters();
    parts.push_back(layer->weight);
    sizes.push_back(layer->weight.size(0));
  }
  return at::linear(x, at::cat(parts)).split_with_sizes(sizes, -1);
}

torch::Tensor LinearImpl::geglu(const torch::Tensor& x) {
  if (!fused_kernels_on(x.device())) return nn::geglu(forward(x));
  note_norm(x.device(), /*is_by_own_kernel=*/true);
  return with_parameters({weight, bias}, [&] { return kernels::geglu(at::linear(x, weight), bias); });
}

Conv2dImpl::Conv2dImpl(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                       std::int64_t padding)
    : stride_(stride), padding_(padding) {
  weight = register_parameter("weight", torch::empty({out, in, kernel, kernel}));
  bias = register_parameter("bias", torch::empty({out}));
}

torch::Tensor Conv2dImpl::forward(const torch::Tensor& x) {
  return with_parameters({weight}, [&] {
    if (fused_kernels_on(x.device())) return convolve(x);
    return conv2d(x, weight, bias, stride_, padding_);
  });
}

// The residual may be another layer's, which asks for parameters of its own: where parameters come and go ours would be
// gone when it has been computed.
torch::Tensor Conv2dImpl::plus(const torch::Tensor& x, const std::function<torch::Tensor()>& residual) {
  if (!fused_kernels_on(x.device()) || !parameters_stay()) {
    const auto y = forward(x);
    return y + residual();
  }
  ask_for_parameters();
  const auto y = conv2d(x, weight, {}, stride_, padding_);
  return add_bias(y, bias, residual());
}

// Where parameters come and go, the bias might be gone before the norm reads it.
std::pair<torch::Tensor, torch::Tensor> Conv2dImpl::before_norm(const torch::Tensor& x) {
  if (!fused_kernels_on(x.device()) || !parameters_stay()) return {forward(x), {}};
  ask_for_parameters();
  return {conv2d(x, weight, {}, stride_, padding_), bias};
}

// By our kernels: cuDNN leaves the bias to LibTorch, which adds it, and sums its gradient, at a fraction of the
// memory's speed. One pixel by one is a matrix product, which adds it on its way.
torch::Tensor Conv2dImpl::convolve(const torch::Tensor& x) const {
  const auto out = weight.size(0), in = weight.size(1);
  const bool is_one_by_one = weight.size(2) == 1 && stride_ == 1 && padding_ == 0;
  if (!is_one_by_one || !x.is_contiguous(at::MemoryFormat::ChannelsLast))
    return add_bias(conv2d(x, weight, {}, stride_, padding_), bias, {});
  const auto pixels = x.permute({0, 2, 3, 1}).flatten(0, 2);  // (B h w, in)
  return linear(pixels, weight.view({out, in}), bias)
      .view({x.size(0), x.size(2), x.size(3), out})
      .permute({0, 3, 1, 2});
}

GroupNormImpl::GroupNormImpl(std::int64_t groups, std::int64_t channels, double eps) : groups_(groups), eps_(eps) {
  weight = register_parameter("weight", torch::empty({channels}));
  bias = register_parameter("bias", torch::empty({channels}));
}

std::pair<torch::Tensor, torch::Tensor> GroupNormImpl::beside(const torch::Tensor& x) {
  if (auto both = try_fused(x, {}, {}, /*with_silu=*/false)) return *both;
  note_norm(x.device(), /*is_by_own_kernel=*/false);
  return {x, with_parameters({weight}, [&] { return at::group_norm(x, groups_, weight, bias, eps_); })};
}

std::pair<torch::Tensor, torch::Tensor> GroupNormImpl::activated_beside(Activation activation, const torch::Tensor& x) {
  if (activation == Activation::silu)
    if (auto both = try_fused(x, {}, {}, /*with_silu=*/true)) return *both;
  auto both = beside(x);
  return {both.first, activate(activation, both.second)};
}

torch::Tensor GroupNormImpl::activated(Activation activation, const torch::Tensor& x, const torch::Tensor& time,
                                       const torch::Tensor& x_bias) {
  if (activation == Activation::silu)
    if (auto both = try_fused(x, time, x_bias, /*with_silu=*/true)) return both->second;
  auto moved = x;
  if (x_bias.defined()) moved = moved + x_bias.view({x_bias.size(0), 1, 1});
  if (time.defined()) moved = moved + time.unsqueeze(-1).unsqueeze(-1);
  return activate(activation, forward(moved));
}

// By a kernel whose backward reads both parameters; nothing where none is made for x.
std::optional<GroupNormImpl::InAndOut> GroupNormImpl::try_fused(const torch::Tensor& x, const torch::Tensor& time,
                                                                const torch::Tensor& x_bias, bool with_silu) {
  if (fused_kernels_on(x.device()) && x.dim() == 4 && x.is_contiguous(at::MemoryFormat::ChannelsLast)) {
    note_norm(x.device(), /*is_by_own_kernel=*/true);
    return with_parameters({weight, bias}, [&] {
      return kernels::group_norm_silu_beside(x, time, x_bias, weight, bias, groups_, eps_, with_silu);
    });
  }
  if (cpu_kernels_are_on() && !x_bias.defined() && suits_group_norm_kernel(x))
    return InAndOut{x, with_parameters({weight, bias}, [&] {
                      return group_norm_of_pixels(x, time, weight, bias, groups_, eps_, with_silu);
                    })};
  return std::nullopt;
}

LayerNormImpl::LayerNormImpl(std::int64_t channels, double eps) : eps_(eps) {
  weight = register_parameter("weight", torch::empty({channels}));
  bias = register_parameter("bias", torch::empty({channels}));
}

static bool fused_layer_norm_takes(const torch::Tensor& x) {
  return fused_kernels_on(x.device()) && x.is_contiguous();
}

std::pair<torch::Tensor, torch::Tensor> LayerNormImpl::beside(const torch::Tensor& x) {
  note_norm(x.device(), fused_layer_norm_takes(x));
  return beside_uncounted(x);
}

std::pair<torch::Tensor, torch::Tensor> LayerNormImpl::beside_uncounted(const torch::Tensor& x) {
  return with_parameters({weight}, [&] {
    if (fused_layer_norm_takes(x)) return kernels::layer_norm_beside(x, weight, bias, eps_);
    return std::pair(x, at::layer_norm(x, weight.sizes(), weight, bias, eps_));
  });
}

std::pair<torch::Tensor, torch::Tensor> LayerNormImpl::add_norm(const torch::Tensor& x, const torch::Tensor& residual) {
  const bool is_own = fused_layer_norm_takes(x) && residual.is_contiguous();
  note_norm(x.device(), is_own);  // LibTorch's where the sum is not in it, whoever computes the norm
  if (!is_own) return beside_uncounted(x + residual);
  return with_parameters({weight}, [&] { return kernels::add_layer_norm(x, residual, weight, bias, eps_); });
}

EmbeddingImpl::EmbeddingImpl(std::int64_t rows, std::int64_t channels) {
  weight = register_parameter("weight", torch::empty({rows, channels}));
}

void place(torch::nn::Module& module, torch::Device device, torch::Dtype dtype, std::optional<bool> channels_last) {
  module.to(device, dtype);
  if (!channels_last.value_or(prefers_channels_last(device, dtype))) return;
  for (auto& parameter : module.parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.data().contiguous(at::MemoryFormat::ChannelsLast));
  }
}

}  // namespace millrace::nn
