#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "millrace/models/autoencoder_kl.h"
#include "millrace/models/clip_text.h"
#include "millrace/models/unet_2d_condition.h"

// How fresh models get their weights: a rule per parameter, and numbers that depend only on the seed and its name, so
// that every rank and every build makes the same model.
namespace millrace {

// Parameter name -> shape, as in the state dict.
using Shapes = std::map<std::string, std::vector<std::int64_t>>;

struct InitRule {
  enum class Kind { constant, uniform, normal };
  Kind kind;
  double scale;  // the constant itself; half the width of the uniform distribution; the standard deviation
  bool operator==(const InitRule&) const = default;
};
using InitRules = std::map<std::string, InitRule>;

Shapes parameter_shapes(const torch::nn::Module& module);

// PyTorch's own rules for linear, convolution and norm layers; diffusers' UNet2DConditionModel and AutoencoderKL use
// nothing else.
InitRules plan_pytorch_init(const Shapes& shapes);

// The rules of a U-Net with 0 for what each residual block, each attention block and the whole network end in, as the
// U-Nets of Stable Diffusion were trained (`zero_module` of Dhariwal and Nichol, "Diffusion Models Beat GANs on Image
// Synthesis").
InitRules with_zero_outputs(InitRules rules);

// The rules of transformers' CLIPTextModel for a text encoder with this config.json. `token_embedding_std` replaces
// that of the token embeddings (0.02 x initializer_factor) where it is above zero.
InitRules plan_clip_init(const Shapes& shapes, const nlohmann::json& config, double token_embedding_std = 0);

// Fills every parameter of a module on the CPU in fp32 by its rule. Numbers: Philox, purpose `weights`, sample =
// XXH3-64 of the parameter's name.
void initialize(torch::nn::Module& module, const InitRules& rules, std::uint64_t seed);

// Fresh networks of the shape that a config.json tells, with random fp32 weights on the CPU.
UNet2DConditionModel make_unet(const nlohmann::json& config, std::uint64_t seed);
AutoencoderKL make_vae(const nlohmann::json& config, std::uint64_t seed);
CLIPTextModel make_text_encoder(const nlohmann::json& config, std::uint64_t seed, double token_embedding_std = 0);

}  // namespace millrace
