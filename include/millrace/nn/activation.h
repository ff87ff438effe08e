#pragma once
#include <torch/types.h>

#include <optional>
#include <string_view>

namespace millrace::nn {

enum class Activation { silu, gelu, gelu_tanh, quick_gelu, mish, relu };

// The words of diffusers' and transformers' configurations ("swish" is silu); nothing when the word is not among them.
std::optional<Activation> try_parse_activation(std::string_view word);

torch::Tensor activate(Activation activation, const torch::Tensor& x);

// value * gelu(gate) of x = (..., [value | gate]), gelu by erf, not by tanh (Shazeer, "GLU variants improve
// transformer"); by our own kernel for CPUs to 7.5e-8 of the gate.
torch::Tensor geglu(const torch::Tensor& x);

}  // namespace millrace::nn
