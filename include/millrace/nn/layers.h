#pragma once
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "millrace/nn/activation.h"
#include "millrace/nn/convolution.h"
#include "millrace/nn/fused.h"
#include "millrace/nn/parameter_source.h"

// The five layers that own parameters. Unlike torch::nn's they leave their parameters uninitialised: a model that loads
// its weights does not pay for 866 million random numbers first.
namespace millrace::nn {

// x (..., in), weight (out, in), bias (out) or undefined -> (..., out).
torch::Tensor linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias);

// (..., in) -> (..., out); bias undefined without one.
class LinearImpl : public Layer {
 public:
  LinearImpl(std::int64_t in, std::int64_t out, bool with_bias = true);
  torch::Tensor forward(const torch::Tensor& x) {
    return with_parameters({weight}, [&] { return linear(x, weight, bias); });
  }
  // Of several layers for one input, (..., out) each; on GPUs by one matrix product where they have no biases.
  static std::vector<torch::Tensor> together(const torch::Tensor& x, const std::vector<LinearImpl*>& layers);
  // geglu of it: (..., in) -> (..., out / 2). Our kernel adds the bias itself, and makes its gradient beside the
  // others.
  torch::Tensor geglu(const torch::Tensor& x);

  torch::Tensor weight, bias;
};
TORCH_MODULE(Linear);

// (B, in, h, w) -> (B, out, h', w'), square kernel, zero padding.
class Conv2dImpl : public Layer {
 public:
  Conv2dImpl(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride = 1, std::int64_t padding = 0);
  torch::Tensor forward(const torch::Tensor& x);
  // forward(x) + residual(), which is called when this layer has its parameters.
  torch::Tensor plus(const torch::Tensor& x, const std::function<torch::Tensor()>& residual);
  // (convolution of x, bias that is still to be added). Where fused kernels run and parameters stay, the bias is left
  // to the norm that follows, and is `.second`; otherwise it is added here, and `.second` is undefined.
  std::pair<torch::Tensor, torch::Tensor> before_norm(const torch::Tensor& x);

  torch::Tensor weight, bias;

 private:
  torch::Tensor convolve(const torch::Tensor& x) const;

  std::int64_t stride_, padding_;
};
TORCH_MODULE(Conv2d);

// (B, C, ...) -> the same; `groups` divides C.
class GroupNormImpl : public Layer {
 public:
  GroupNormImpl(std::int64_t groups, std::int64_t channels, double eps);
  torch::Tensor forward(const torch::Tensor& x) { return beside(x).second; }
  // activation(norm(x + time + x_bias)); time (B, C) and x_bias (C) or undefined.
  torch::Tensor activated(Activation activation, const torch::Tensor& x, const torch::Tensor& time = {},
                          const torch::Tensor& x_bias = {});
  // (x, norm(x)). Use the returned x for every other use of x, such as the residual: the fused backward then adds that
  // gradient in the norm's own kernel.
  std::pair<torch::Tensor, torch::Tensor> beside(const torch::Tensor& x);
  std::pair<torch::Tensor, torch::Tensor> activated_beside(Activation activation, const torch::Tensor& x);

  torch::Tensor weight, bias;

 private:
  using InAndOut = std::pair<torch::Tensor, torch::Tensor>;
  std::optional<InAndOut> try_fused(const torch::Tensor& x, const torch::Tensor& time, const torch::Tensor& x_bias,
                                    bool with_silu);

  std::int64_t groups_;
  double eps_;
};
TORCH_MODULE(GroupNorm);

// (..., C) -> the same.
class LayerNormImpl : public Layer {
 public:
  LayerNormImpl(std::int64_t channels, double eps);
  torch::Tensor forward(const torch::Tensor& x) { return beside(x).second; }
  // As GroupNorm's.
  std::pair<torch::Tensor, torch::Tensor> beside(const torch::Tensor& x);
  // (x + residual, norm of that), both of x's shape.
  std::pair<torch::Tensor, torch::Tensor> add_norm(const torch::Tensor& x, const torch::Tensor& residual);

  torch::Tensor weight, bias;

 private:
  std::pair<torch::Tensor, torch::Tensor> beside_uncounted(const torch::Tensor& x);

  double eps_;
};
TORCH_MODULE(LayerNorm);

// ids (...) i64 -> (..., C).
class EmbeddingImpl : public Layer {
 public:
  EmbeddingImpl(std::int64_t rows, std::int64_t channels);
  torch::Tensor forward(const torch::Tensor& ids) {
    return with_parameters({weight}, [&] { return at::embedding(weight, ids); });
  }

  torch::Tensor weight;
};
TORCH_MODULE(Embedding);

// Modules of one type under the names "0", "1", ...: torch::nn::ModuleList without a dynamic cast at every use.
template <class Holder>
class ListImpl : public torch::nn::Module {
 public:
  void add(Holder item) { items_.push_back(register_module(std::to_string(items_.size()), std::move(item))); }
  std::size_t size() const { return items_.size(); }
  Holder& operator[](std::size_t i) { return items_[i]; }
  auto begin() { return items_.begin(); }
  auto end() { return items_.end(); }

 private:
  std::vector<Holder> items_;
};
template <class Holder>
using List = std::shared_ptr<ListImpl<Holder>>;
template <class Holder>
List<Holder> make_list() {
  return std::make_shared<ListImpl<Holder>>();
}

// Whether images lie channels-last unless told otherwise: on GPUs, whose tensor cores want that, and in float32 on CPUs
// while our own kernels for norms and GEGLU are on, which want the same. (LibTorch's group norm takes five times as
// long on this layout there.)
inline bool prefers_channels_last(torch::Device device, torch::Dtype dtype,
                                  bool kernels_are_on = own_kernels_are_on()) {
  return device.is_cuda() || (kernels_are_on && dtype == torch::kFloat32);
}

// Moves a network to where it computes. `channels_last`: convolution weights in NHWC, the layout of the tensor cores
// and of our own kernels, for inputs that lie so too; as nothing, as `prefers_channels_last` says.
void place(torch::nn::Module& module, torch::Device device, torch::Dtype dtype,
           std::optional<bool> channels_last = std::nullopt);

}  // namespace millrace::nn
