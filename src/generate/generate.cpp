#include "millrace/generate/generate.h"

#include <fmt/ranges.h>
#include <torch/utils.h>

#include <algorithm>

#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/stop.h"
#include "millrace/core/text.h"
#include "millrace/diffusion/sampler.h"
#include "millrace/generate/sampling.h"
#include "millrace/models/tensors.h"

namespace millrace {
namespace {

std::int64_t latent_extent(const char* key, const config::Auto<int>& pixels, std::int64_t factor,
                           const std::optional<std::vector<std::int64_t>>& sample_size, std::size_t axis) {
  if (pixels.is_auto()) {
    if (!sample_size) fail(Exit::usage, "generate.{} must be set: the U-Net's config.json has no sample_size", key);
    return sample_size->at(axis);
  }
  if (*pixels.value % factor != 0)
    fail(Exit::usage, "generate.{} = {} must be a multiple of {}, the VAE's factor", key, *pixels.value, factor);
  return *pixels.value / factor;
}

SchedulerConfig chosen_scheduler(const SchedulerConfig& own, const GenerateConfig& config) {
  return config.sampler ? own.with_class(*config.sampler) : own;
}

SamplingPlan plan_sampling(const ImageModel& model, const GenerateConfig& config) {
  return {.scheduler = scheduler_of(model, config),
          .steps = config.steps,
          .guidance_scale = config.guidance_scale,
          .guidance_rescale = config.guidance_rescale};
}

// (B, 77, D). One by one: so a text's embedding does not depend on the batch that it came with.
torch::Tensor encode_negative_prompts(ImageModel& model, std::span<const ImageRequest> requests) {
  std::vector<torch::Tensor> rows;
  for (const auto& request : requests) {
    const auto& text = request.negative_prompt;
    if (!model.negative || model.negative->text != text)
      model.negative = {text, text_embeddings(model.text_encoder, model.tokenizer, std::span(&text, 1))};
    rows.push_back(model.negative->embedding);
  }
  return torch::cat(rows);
}

// Text embeddings of the requests; with guidance those of all negative prompts come first: (B or 2 B, 77, D).
torch::Tensor encode_prompts(ImageModel& model, std::span<const ImageRequest> requests, bool is_guided) {
  std::vector<std::string> texts;
  for (const auto& request : requests) texts.push_back(request.prompt);
  const auto embeddings = text_embeddings(model.text_encoder, model.tokenizer, texts);
  return is_guided ? torch::cat({encode_negative_prompts(model, requests), embeddings}) : embeddings;
}

// Networks for inpainting take a mask and a picture beside the latents, InstructPix2Pix takes a picture.
void check_channels(const UNet2DConditionConfig& unet, const AutoencoderKLConfig& vae) {
  if (unet.in_channels == vae.latent_channels && unet.out_channels == vae.latent_channels) return;
  throw Error(
      Exit::usage,
      fmt::format("the U-Net has in_channels = {} and out_channels = {}, and the VAE's latents have {}",
                  unet.in_channels, unet.out_channels, vae.latent_channels),
      "pictures are painted from text alone: networks for inpainting or for editing pictures are not supported");
}

// As where the text encoder of Stable Diffusion 1 stands beside a U-Net of Stable Diffusion 2.
void check_text(const UNet2DConditionConfig& unet, const CLIPTextConfig& text) {
  for (const auto width : unet.cross_attention_dim)
    if (width != text.hidden_size)
      throw Error(Exit::usage,
                  fmt::format("the U-Net has cross_attention_dim = {}, and the text encoder has hidden_size = {}",
                              width, text.hidden_size),
                  "they are of different versions of Stable Diffusion: take both from one folder");
  if (text.max_position_embeddings < token_count)
    throw Error(Exit::usage,
                fmt::format("the text encoder has max_position_embeddings = {}, and prompts are {} tokens",
                            text.max_position_embeddings, token_count),
                "CLIP's text encoders have 77");
}

torch::Tensor noise_of(std::span<const ImageRequest> requests, const std::vector<std::int64_t>& shape) {
  std::vector<std::uint64_t> seeds;
  for (const auto& request : requests) seeds.push_back(request.seed);
  return initial_noise(seeds, shape);
}

}  // namespace

static std::vector<std::int64_t> latent_shape(const UNet2DConditionConfig& unet, const AutoencoderKLConfig& vae,
                                              const CLIPTextConfig& text, const GenerateConfig& config) {
  check_channels(unet, vae);
  check_text(unet, text);
  const std::int64_t factor = vae.factor();
  return {unet.in_channels, latent_extent("height", config.height, factor, unet.sample_size, 0),
          latent_extent("width", config.width, factor, unet.sample_size, 1)};
}

std::vector<std::int64_t> latent_shape(const ImageModel& model, const GenerateConfig& config) {
  return latent_shape(model.unet->config(), model.vae->config(), model.text_encoder->config(), config);
}

std::pair<std::int64_t, std::int64_t> picture_size(const ImageModel& model, const GenerateConfig& config) {
  const auto shape = latent_shape(model, config);
  const auto factor = model.vae->config().factor();
  return {shape[1] * factor, shape[2] * factor};
}

SchedulerConfig scheduler_of(const ImageModel& model, const GenerateConfig& config) {
  return chosen_scheduler(model.scheduler, config);
}

void GenerateConfig::describe(config::Section& section) {
  section.key("steps", steps, "sampling steps").at_least(1);
  section
      .key("guidance_scale", guidance_scale, "strength of the prompt over the negative prompt; up to 1 = no guidance")
      .at_least(0);
  section
      .key("guidance_rescale", guidance_rescale,
           "how far guided outputs get back the deviation of the prompt's own, 0 to 1; 0.7 against washed-out images")
      .at_least(0)
      .at_most(1);
  section.key("sampler", sampler,
              {{"ddim", SchedulerClass::ddim},
               {"pndm", SchedulerClass::pndm},
               {"euler", SchedulerClass::euler_discrete},
               {"dpmpp_2m", SchedulerClass::dpmsolver_multistep},
               {"unipc", SchedulerClass::unipc_multistep}},
              "how the noise is removed; null = as the pipeline's scheduler file says");
  section.key("seed", seed, "of the first image's noise; the following have seed + 1, seed + 2, ...");
  section
      .key("height", height,
           "pixels; auto = what the U-Net was made for, in evaluate --run the run's transform.resolution")
      .at_least(8);
  section
      .key("width", width,
           "pixels; auto = what the U-Net was made for, in evaluate --run the run's transform.resolution")
      .at_least(8);
  section.key("batch_size", batch_size, "images that are made together").at_least(1);
  section.key("negative_prompt", negative_prompt, "what the images should not show");
  section.key(
      "initial_latents", initial_latents,
      "safetensors file with the noise to begin with: latents, f32 (N, 4, h, w), unit normal; null = from the seeds");
  section.key("save_latents", save_latents,
              "also write latents.safetensors: the final latents, still scaled; all pictures are painted anew");
}

void check_initial_latents(const ImageModel& model, std::size_t images, const GenerateConfig& config,
                           const std::optional<torch::Tensor>& initial_latents) {
  auto expected = latent_shape(model, config);
  expected.insert(expected.begin(), static_cast<std::int64_t>(images));
  if (initial_latents && initial_latents->sizes() != torch::IntArrayRef(expected))
    fail(Exit::usage, "generate.initial_latents has the shape ({}), but {} images of this size need ({})",
         fmt::join(initial_latents->sizes(), ", "), images, fmt::join(expected, ", "));
}

static void check_sampling(const SchedulerConfig& scheduler, int steps) {
  (void)make_sampler(scheduler, steps);
  if (scheduler.clip_sample)  // no pipeline has it in the class of its own file
    log::warning(
        "scheduler/scheduler_config.json does not say clip_sample, so that {} clips latents to {}, as diffusers' does "
        "there: \"clip_sample\": false in the file paints what the model was trained for",
        scheduler.class_name(), scheduler.clip_sample_range);
}

void check_sampling(const ImageModel& model, const GenerateConfig& config) {
  check_sampling(scheduler_of(model, config), config.steps);
}

void check_settings(const PipelineFolder& folder, const GenerateConfig& config) {
  (void)latent_shape(UNet2DConditionConfig::from_json(folder.config("unet")),
                     AutoencoderKLConfig::from_json(folder.config("vae")),
                     CLIPTextConfig::from_json(folder.config("text_encoder")), config);
  check_sampling(chosen_scheduler(folder.scheduler(), config), config.steps);
}

std::optional<std::string> complaint_about_long_prompts(const ClipTokenizer& tokenizer,
                                                        std::span<const std::string> prompts) {
  constexpr int most = token_count - 2;  // between the marks of the beginning and the end
  constexpr std::size_t shown = 60;
  const auto is_long = [&](const std::string& prompt) { return tokenizer.count(prompt) > most; };
  const auto first = std::ranges::find_if(prompts, is_long);
  if (first == prompts.end()) return std::nullopt;
  return fmt::format(
      "{} of {} prompts have more than {} tokens, of which the text encoder sees the first {}: \"{}...\"",
      std::count_if(first, prompts.end(), is_long), prompts.size(), most, most, valid_utf8(first->substr(0, shown)));
}

void generate(ImageModel& model, std::span<const ImageRequest> requests, const GenerateConfig& config,
              const std::optional<torch::Tensor>& initial_latents,
              const std::function<void(const GeneratedImage&)>& on_image) {
  const torch::NoGradGuard no_grad;
  const auto plan = plan_sampling(model, config);
  const auto shape = latent_shape(model, config);
  check_initial_latents(model, requests.size(), config, initial_latents);
  const auto batch_size = static_cast<std::size_t>(config.batch_size);
  for (std::size_t first = 0; first < requests.size(); first += batch_size) {
    const auto batch = requests.subspan(first, std::min(batch_size, requests.size() - first));
    const auto begin = static_cast<std::int64_t>(first);
    const auto noise =
        initial_latents ? initial_latents->slice(0, begin, begin + std::ssize(batch)) : noise_of(batch, shape);
    const auto text = encode_prompts(model, batch, plan.is_guided());
    const auto latents = denoise(model.unet, plan, noise, text, [] { return stop::requested(); });
    if (!latents.defined()) fail(Exit::requeue, "told to stop while painting: what was not finished is made again");
    const auto images = decode_scaled_latents(model.vae, latents);
    const auto host_latents = latents.to(torch::kCPU);
    for (std::size_t i = 0; i < images.size(); ++i)
      on_image({first + i, images[i], host_latents[static_cast<std::int64_t>(i)]});
  }
}

torch::Tensor load_latents(const std::filesystem::path& file) {
  const Tensors tensors = read_tensors(file);
  const auto latents = tensors.find("latents");
  if (latents == tensors.end() || latents->second.scalar_type() != torch::kFloat32 || latents->second.dim() != 4)
    fail(Exit::io, "{}: no tensor \"latents\" of type F32 and shape (N, C, h, w)", file.string());
  return latents->second;
}

void save_latents(const std::filesystem::path& file, const torch::Tensor& latents) {
  write_tensors(file, {{"latents", latents.to(torch::kFloat32)}});
}

}  // namespace millrace
