#include "millrace/nn/layers.h"

#include "cpu/group_norm.h"
#include "millrace/kernels/ops.h"
#include "millrace/nn/fused.h"

namespace millrace::nn {

LinearImpl::LinearImpl(std::int64_t in, std::int64_t out, bool with_bias) {
  weight = register_parameter("weight", torch::empty({out, in}));
  if (with_bias) bias = register_parameter("bias", torch::empty({out}));
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

GroupNormImpl::GroupNormImpl(std::int64_t groups, std::int64_t channels, double eps) : groups_(groups), eps_(eps) {
  weight = register_parameter("weight", torch::empty({channels}));
  bias = register_parameter("bias", torch::empty({channels}));
}

torch::Tensor GroupNormImpl::forward(const torch::Tensor& x) {
  if (const auto y = in_one(x, {}, /*with_silu=*/false); y.defined()) return y;
  note_norm(x.device(), /*is_by_own_kernel=*/false);
  return with_parameters({weight}, [&] { return at::group_norm(x, groups_, weight, bias, eps_); });
}

torch::Tensor GroupNormImpl::activated(Activation activation, const torch::Tensor& x, const torch::Tensor& shift) {
  if (activation == Activation::silu)
    if (const auto y = in_one(x, shift, /*with_silu=*/true); y.defined()) return y;
  return activate(activation, forward(shift.defined() ? x + shift.unsqueeze(-1).unsqueeze(-1) : x));
}

// By a kernel whose backward reads both parameters; undefined where none is made for x.
torch::Tensor GroupNormImpl::in_one(const torch::Tensor& x, const torch::Tensor& shift, bool with_silu) {
  if (fused_kernels_on(x.device()) && x.dim() == 4 && x.is_contiguous(at::MemoryFormat::ChannelsLast)) {
    note_norm(x.device(), /*is_by_own_kernel=*/true);
    return with_parameters({weight, bias},
                           [&] { return kernels::group_norm_silu(x, shift, weight, bias, groups_, eps_, with_silu); });
  }
  if (cpu_kernels_are_on() && suits_group_norm_kernel(x))
    return with_parameters({weight, bias},
                           [&] { return group_norm_of_pixels(x, shift, weight, bias, groups_, eps_, with_silu); });
  return {};
}

LayerNormImpl::LayerNormImpl(std::int64_t channels, double eps) : eps_(eps) {
  weight = register_parameter("weight", torch::empty({channels}));
  bias = register_parameter("bias", torch::empty({channels}));
}

torch::Tensor LayerNormImpl::forward(const torch::Tensor& x) {
  const bool is_own = fused_kernels_on(x.device()) && x.is_contiguous();
  note_norm(x.device(), is_own);
  return with_parameters({weight}, [&] {
    if (is_own) return kernels::layer_norm(x, weight, bias, eps_);
    return at::layer_norm(x, weight.sizes(), weight, bias, eps_);
  });
}

std::pair<torch::Tensor, torch::Tensor> LayerNormImpl::of_sum(const torch::Tensor& x, const torch::Tensor& residual) {
  if (!fused_kernels_on(x.device()) || !x.is_contiguous() || !residual.is_contiguous()) {
    note_norm(x.device(), /*is_by_own_kernel=*/false);  // the sum is not in it, whoever computes the norm
    const auto sum = x + residual;
    return {sum, forward(sum)};
  }
  note_norm(x.device(), /*is_by_own_kernel=*/true);
  torch::Tensor sum;
  const auto normed = with_parameters({weight}, [&] {
    auto outputs = kernels::add_layer_norm(x, residual, weight, bias, eps_);
    sum = outputs.first;
    return outputs.second;
  });
  return {sum, normed};
}

EmbeddingImpl::EmbeddingImpl(std::int64_t rows, std::int64_t channels) {
  weight = register_parameter("weight", torch::empty({rows, channels}));
}

void place(torch::nn::Module& module, torch::Device device, torch::Dtype dtype, std::optional<bool> channels_last) {
  module.to(device, dtype);
  if (!channels_last.value_or(has_own_kernels(device, dtype))) return;
  for (auto& parameter : module.parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.data().contiguous(at::MemoryFormat::ChannelsLast));
  }
}

}  // namespace millrace::nn
