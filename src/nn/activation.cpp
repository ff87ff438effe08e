#include "millrace/nn/activation.h"

#include <torch/autograd.h>

#include <array>
#include <utility>
#include <vector>

#include "cpu/geglu.h"
#include "millrace/core/error.h"
#include "millrace/core/text.h"
#include "millrace/kernels/ops.h"
#include "millrace/nn/fused.h"

namespace millrace::nn {

std::optional<Activation> try_parse_activation(std::string_view word) {
  using enum Activation;
  static constexpr std::array<std::pair<std::string_view, Activation>, 8> words{{{"silu", silu},
                                                                                 {"swish", silu},
                                                                                 {"gelu", gelu},
                                                                                 {"gelu_new", gelu_tanh},
                                                                                 {"gelu_pytorch_tanh", gelu_tanh},
                                                                                 {"quick_gelu", quick_gelu},
                                                                                 {"mish", mish},
                                                                                 {"relu", relu}}};
  for (const auto& [name, activation] : words) {
    if (name == lower(word)) return activation;  // as diffusers does
  }
  return std::nullopt;
}

torch::Tensor activate(Activation activation, const torch::Tensor& x) {
  switch (activation) {
    case Activation::silu:
      return at::silu(x);
    case Activation::gelu:
      return at::gelu(x);
    case Activation::gelu_tanh:
      return at::gelu(x, "tanh");
    case Activation::quick_gelu:
      return x * at::sigmoid(1.702 * x);
    case Activation::mish:
      return at::mish(x);
    case Activation::relu:
      return at::relu(x);
  }
  throw bug("every activation has a function");
}

namespace {

// By hand, so that backward writes both halves into one gradient instead of joining two.
struct Geglu : torch::autograd::Function<Geglu> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x) {
    const auto halves = x.chunk(2, -1);
    const auto gate = at::gelu(halves[1]);
    context->save_for_backward({x, gate});
    return halves[0] * gate;
  }

  static std::vector<torch::Tensor> backward(torch::autograd::AutogradContext* context,
                                             std::vector<torch::Tensor> output_grads) {
    const auto saved = context->get_saved_variables();
    const auto& x = saved[0];
    const auto& gate = saved[1];
    const auto& grad = output_grads[0];
    const auto halves = x.chunk(2, -1);
    const auto x_grad = at::empty_like(x);
    auto grad_halves = x_grad.chunk(2, -1);
    at::mul_out(grad_halves[0], grad, gate);
    at::gelu_backward_out(grad_halves[1], grad * halves[0], halves[1]);
    return {x_grad};
  }
};

}  // namespace

torch::Tensor geglu(const torch::Tensor& x) {
  const bool is_own = fused_kernels_on(x.device()) && x.is_contiguous();
  note_norm(x.device(), is_own);
  if (is_own) return kernels::geglu(x);
  if (cpu_kernels_are_on() && suits_geglu_kernel(x)) return geglu_in_one_pass(x);
  return Geglu::apply(x);
}

}  // namespace millrace::nn
