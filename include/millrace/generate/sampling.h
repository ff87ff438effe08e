#pragma once
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "millrace/diffusion/scheduler_config.h"
#include "millrace/image/image.h"
#include "millrace/models/autoencoder_kl.h"
#include "millrace/models/clip_text.h"
#include "millrace/models/unet_2d_condition.h"
#include "millrace/text/tokenizer.h"

// The stations between a prompt and its picture, each a batch at a time. None of them keeps a graph.
namespace millrace {

struct SamplingPlan {
  SchedulerConfig scheduler;
  int steps = 50;
  double guidance_scale = 7.5;
  double guidance_rescale = 0;  // phi of Lin et al., "Common Diffusion Noise Schedules and Sample Steps are Flawed"

  bool is_guided() const { return guidance_scale > 1; }
};

// (N, 77, D), in the text encoder's dtype on its device. A text that stands there several times is encoded once.
// Error(io) for a token that the text encoder does not know.
torch::Tensor text_embeddings(CLIPTextModel& encoder, const ClipTokenizer& tokenizer,
                              std::span<const std::string> texts);

// Unit normals f32 (N, C, h, w) on the host: the same for a seed whatever its neighbours.
torch::Tensor initial_noise(std::span<const std::uint64_t> seeds, const std::vector<std::int64_t>& latent_shape);

// Unit noise (B, C, h, w) -> latents f32 on the U-Net's device, still scaled. `text`: (B, 77, D), with guidance
// (2 B, 77, D), those of the negative prompts first. The sampler computes in float32, the U-Net in its dtype. Undefined
// once `gives_up`, asked before each of its steps, says so.
torch::Tensor denoise(
    UNet2DConditionModel& unet, const SamplingPlan& plan, const torch::Tensor& noise, const torch::Tensor& text,
    const std::function<bool()>& gives_up = [] { return false; });

// Scaled latents (B, C, h, w) -> their pictures; halves round to even, as numpy does. Error(numerics) where one is not
// finite.
std::vector<Image> decode_scaled_latents(AutoencoderKL& vae, const torch::Tensor& latents);
// The same of latents that are not scaled, one by one through the decoder.
std::vector<Image> decode_unscaled_latents(AutoencoderKL& vae, const torch::Tensor& latents);

}  // namespace millrace
