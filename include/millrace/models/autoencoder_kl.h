#pragma once
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "millrace/diffusion/latent_scale.h"
#include "millrace/models/vae_blocks.h"
#include "millrace/nn/layers.h"

namespace millrace {

// vae/config.json of diffusers' AutoencoderKL.
struct AutoencoderKLConfig {
  // Error(io) names `file` and the key for wrong values and for networks that are not built here; a key that is unknown
  // gives a warning.
  static AutoencoderKLConfig from_json(const nlohmann::json& json, const std::string& file = "vae/config.json");
  // The keys as they were read.
  const nlohmann::json& to_json() const { return source; }

  // Image pixels per latent pixel, each way.
  std::int64_t factor() const { return std::int64_t{1} << (coder.channels.size() - 1); }

  // Of the latents of images of `resolution` x `resolution` pixels; Error(usage) where these have no whole number of
  // latent pixels.
  std::int64_t latent_side(std::int64_t resolution) const;

  // Elements of the largest feature map of one image of height x width pixels.
  std::int64_t largest_encoder_map(std::int64_t height, std::int64_t width) const;
  std::int64_t largest_decoder_map(std::int64_t height, std::int64_t width) const;
  // Images of these sizes that go through the encoder, or the decoder, in one pass; more take several.
  std::int64_t images_to_encode(std::int64_t height, std::int64_t width) const;
  std::int64_t images_to_decode(std::int64_t height, std::int64_t width) const;
  // Images of side x side pixels that go through both in one pass each.
  std::int64_t images_of_one_pass(std::int64_t side) const;

  LatentScale latent_scale() const { return {scaling_factor, shift_factor.value_or(0)}; }

  std::int64_t in_channels, out_channels, latent_channels;
  CoderOptions coder;
  bool use_quant_conv, use_post_quant_conv;
  double scaling_factor;
  std::optional<double> shift_factor;  // none in Stable Diffusion

  nlohmann::json source;
};

// Images to latents and back (Rombach et al., section 3.1), with diffusers' names.
class AutoencoderKLImpl : public torch::nn::Module {
 public:
  explicit AutoencoderKLImpl(const AutoencoderKLConfig& config);

  // image (B, 3, H, W) in [-1, 1] -> moments (B, 2 latent_channels, H / factor, W / factor): mean and log-variance of
  // the latents' distribution, neither clamped nor scaled.
  torch::Tensor encode(const torch::Tensor& image);
  // latent (B, latent_channels, h, w), not scaled -> image (B, 3, factor h, factor w), about [-1, 1].
  torch::Tensor decode(const torch::Tensor& latent);

  const AutoencoderKLConfig& config() const { return config_; }

 private:
  AutoencoderKLConfig config_;
  VaeEncoder encoder;
  VaeDecoder decoder;
  nn::Conv2d quant_conv{nullptr}, post_quant_conv{nullptr};
};
TORCH_MODULE(AutoencoderKL);

// network(batch); one of more than `limit` rows goes through it in equal parts, whose size never changes.
torch::Tensor in_parts(const torch::Tensor& batch, std::int64_t limit,
                       const std::function<torch::Tensor(const torch::Tensor&)>& network);

}  // namespace millrace
