#pragma once
#include <torch/types.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/config/config.h"
#include "millrace/diffusion/scheduler_config.h"
#include "millrace/image/image.h"
#include "millrace/models/autoencoder_kl.h"
#include "millrace/models/clip_text.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/models/unet_2d_condition.h"
#include "millrace/text/tokenizer.h"

// Pictures from weights: text-to-image with classifier-free guidance (Ho and Salimans, "Classifier-Free Diffusion
// Guidance"), as diffusers' StableDiffusionPipeline does it.
namespace millrace {

struct GenerateConfig {
  int steps = 50;
  double guidance_scale = 7.5;
  double guidance_rescale = 0;
  std::optional<SchedulerClass> sampler = std::nullopt;  // none = the folder's
  std::uint64_t seed = 0;
  config::Auto<int> height = {}, width = {};  // pixels; auto = the U-Net's sample size
  int batch_size = 8;
  std::string negative_prompt = "";
  std::optional<std::string> initial_latents = std::nullopt;
  bool save_latents = false;

  void describe(config::Section& section);
};

struct ImageRequest {
  std::string prompt;
  std::string negative_prompt;
  std::uint64_t seed = 0;  // of the initial noise: the same seed gives the same noise in any batch
};

// A text-to-image model; all networks on one device, each in its own dtype.
struct ImageModel {
  UNet2DConditionModel unet;
  AutoencoderKL vae;
  CLIPTextModel text_encoder;
  const ClipTokenizer& tokenizer;
  SchedulerConfig scheduler;

  struct Encoded {
    std::string text;
    torch::Tensor embedding;  // (1, 77, D)
  };
  std::optional<Encoded> negative{};  // the negative prompt of the last picture, which as a rule is the next one's
};

// (C, h, w) of one latent of the size that `config` asks for; Error(usage) when the VAE's factor does not divide it,
// and where the U-Net takes or gives something else than the VAE's latents and the text encoder's embeddings.
std::vector<std::int64_t> latent_shape(const ImageModel& model, const GenerateConfig& config);

// Its picture's height and width in pixels.
std::pair<std::int64_t, std::int64_t> picture_size(const ImageModel& model, const GenerateConfig& config);

// The model's own, or its like of the class that `config` names.
SchedulerConfig scheduler_of(const ImageModel& model, const GenerateConfig& config);

// Error(usage) unless they are (images, C, h, w), or none, and the size is one that the model can paint.
void check_initial_latents(const ImageModel& model, std::size_t images, const GenerateConfig& config,
                           const std::optional<torch::Tensor>& initial_latents);

// Error where no sampler paints as `config` and the model's scheduler say: see make_sampler.
void check_sampling(const ImageModel& model, const GenerateConfig& config);

// What latent_shape and check_sampling refuse, of a folder's models before their weights are read.
void check_settings(const PipelineFolder& folder, const GenerateConfig& config);

// Of prompts whose end the text encoder does not see, with the first of them.
std::optional<std::string> complaint_about_long_prompts(const ClipTokenizer& tokenizer,
                                                        std::span<const std::string> prompts);

struct GeneratedImage {
  std::size_t index = 0;  // of its request
  Image image;
  torch::Tensor latent;  // f32 (C, h, w) on the host: the final one, still scaled
};

// Makes one image per request, batch by batch, and hands each over in order. The sampler works in fp32, the networks
// in their dtypes. `initial_latents` (N, C, h, w), unit normal, replaces the noise of the N requests' seeds.
// Error(usage) where latent_shape has it and for initial latents of another shape, Error(requeue) soon after the
// process was told to stop, Error(numerics) for pictures that are not finite.
void generate(ImageModel& model, std::span<const ImageRequest> requests, const GenerateConfig& config,
              const std::optional<torch::Tensor>& initial_latents,
              const std::function<void(const GeneratedImage&)>& on_image);

// Tensor "latents", f32 (N, C, h, w), of a safetensors file; Error(io) naming the file when there is no such one.
torch::Tensor load_latents(const std::filesystem::path& file);
// The reverse.
void save_latents(const std::filesystem::path& file, const torch::Tensor& latents);

}  // namespace millrace
