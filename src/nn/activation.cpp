#include "millrace/nn/activation.h"

#include <array>
#include <utility>

namespace millrace::nn {

std::optional<Activation> parse_activation(std::string_view word) {
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
    if (name == word) return activation;
  }
  return std::nullopt;
}

torch::Tensor activate(Activation activation, const torch::Tensor& x) {
  switch (activation) {
    case Activation::silu: return at::silu(x);
    case Activation::gelu: return at::gelu(x);
    case Activation::gelu_tanh: return at::gelu(x, "tanh");
    case Activation::quick_gelu: return x * at::sigmoid(1.702 * x);
    case Activation::mish: return at::mish(x);
    case Activation::relu: return at::relu(x);
  }
  return x;
}

torch::Tensor geglu(const torch::Tensor& x) {
  const auto halves = x.chunk(2, -1);
  return halves[0] * at::gelu(halves[1]);
}

}  // namespace millrace::nn
