#include "millrace/generate/generate.h"

#include <fmt/ranges.h>
#include <torch/utils.h>

#include <algorithm>

#include "millrace/core/error.h"
#include "millrace/core/philox.h"
#include "millrace/diffusion/sampler.h"
#include "millrace/models/tensors.h"

namespace millrace {
namespace {

// What does not change from batch to batch.
struct Plan {
  SchedulerConfig scheduler;
  int steps;
  double guidance_scale;
  bool guided;
  std::vector<std::int64_t> latent_shape;  // (C, h, w)
};

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

Plan plan_generation(const ImageModel& model, const GenerateConfig& config) {
  const auto& unet = model.unet->config();
  const std::int64_t factor = model.vae->config().factor();
  return {.scheduler = config.sampler ? model.scheduler.with_class(*config.sampler) : model.scheduler,
          .steps = config.steps,
          .guidance_scale = config.guidance_scale,
          .guided = config.guidance_scale > 1,
          .latent_shape = {unet.in_channels, latent_extent("height", config.height, factor, unet.sample_size, 0),
                           latent_extent("width", config.width, factor, unet.sample_size, 1)}};
}

torch::Device device_of(const torch::nn::Module& module) {
  return module.parameters().front().device();
}
torch::Dtype dtype_of(const torch::nn::Module& module) {
  return module.parameters().front().scalar_type();
}

torch::Tensor initial_noise(std::span<const ImageRequest> requests, const Plan& plan) {
  std::vector<torch::Tensor> rows;
  for (const ImageRequest& request : requests) {
    torch::Tensor row = torch::empty(plan.latent_shape, torch::kFloat32);
    const std::span<float> numbers(row.data_ptr<float>(), static_cast<std::size_t>(row.numel()));
    fill_normal({.seed = request.seed}, Purpose::initial_latents, numbers);
    rows.push_back(row);
  }
  return torch::stack(rows);
}

// Text embeddings of the requests; with guidance those of all negative prompts come first: (B or 2 B, 77, D).
torch::Tensor encode_prompts(ImageModel& model, std::span<const ImageRequest> requests, bool guided) {
  std::vector<torch::Tensor> ids;
  const auto add = [&](const std::string& text) {
    ids.push_back(torch::tensor(model.tokenizer.encode(text), torch::kInt64));
  };
  if (guided) {
    for (const ImageRequest& request : requests) add(request.negative_prompt);
  }
  for (const ImageRequest& request : requests) add(request.prompt);
  return model.text_encoder->forward(torch::stack(ids).to(device_of(*model.text_encoder)));
}

// The U-Net's answer, pushed away from that for the negative prompt; fp32.
torch::Tensor guided_output(ImageModel& model, const Plan& plan, const torch::Tensor& input, double timestep,
                            const torch::Tensor& text) {
  const torch::Tensor sample = plan.guided ? torch::cat({input, input}) : input;
  const auto t = torch::full({1}, timestep, torch::TensorOptions(torch::kFloat32).device(input.device()));
  const torch::Tensor output = model.unet->forward(sample.to(dtype_of(*model.unet)), t, text).to(torch::kFloat32);
  if (!plan.guided) return output;
  const std::vector<torch::Tensor> parts = output.chunk(2);
  return parts[0] + plan.guidance_scale * (parts[1] - parts[0]);
}

torch::Tensor denoise(ImageModel& model, const Plan& plan, const torch::Tensor& noise, const torch::Tensor& text) {
  const auto sampler = make_sampler(plan.scheduler, plan.steps);
  torch::Tensor sample = noise * sampler->initial_sigma();
  for (std::size_t call = 0; call < sampler->timesteps().size(); ++call) {
    const torch::Tensor input = sampler->scale_model_input(sample, call);
    sample = sampler->step(guided_output(model, plan, input, sampler->timesteps()[call], text), call, sample);
  }
  return sample;
}

torch::Tensor unscale(const torch::Tensor& latents, const AutoencoderKLConfig& config) {
  return latents / config.scaling_factor + config.shift_factor.value_or(0);
}

// Latents (B, C, h, w), not scaled -> u8 pixels (B, H, W, 3) on the host; halves round to even, as numpy does.
torch::Tensor decode_pixels(AutoencoderKL& vae, const torch::Tensor& latents) {
  const torch::Tensor image = vae->decode(latents.to(device_of(*vae), dtype_of(*vae))).to(torch::kFloat32);
  const torch::Tensor levels = ((image * 0.5 + 0.5).clamp(0, 1) * 255).round();
  return levels.to(torch::kUInt8).permute({0, 2, 3, 1}).to(torch::kCPU).contiguous();
}

Image to_image(const torch::Tensor& pixels) {  // u8 (H, W, 3)
  const std::uint8_t* first = pixels.data_ptr<std::uint8_t>();
  return {static_cast<int>(pixels.size(1)), static_cast<int>(pixels.size(0)), {first, first + pixels.numel()}};
}

}  // namespace

void GenerateConfig::describe(config::Section& section) {
  section.key("steps", steps, "sampling steps").at_least(1);
  section
      .key("guidance_scale", guidance_scale, "strength of the prompt over the negative prompt; up to 1 = no guidance")
      .at_least(0);
  section.key("sampler", sampler,
              {{"ddim", SchedulerClass::ddim},
               {"pndm", SchedulerClass::pndm},
               {"euler", SchedulerClass::euler_discrete},
               {"dpmpp_2m", SchedulerClass::dpmsolver_multistep},
               {"unipc", SchedulerClass::unipc_multistep}},
              "how the noise is removed; null = as the pipeline's scheduler file says");
  section.key("seed", seed, "of the first image's noise; the following have seed + 1, seed + 2, ...");
  section.key("height", height, "pixels; auto = what the U-Net was made for").at_least(8);
  section.key("width", width, "pixels; auto = what the U-Net was made for").at_least(8);
  section.key("batch_size", batch_size, "images that are made together").at_least(1);
  section.key("negative_prompt", negative_prompt, "what the images should not show");
  section.key(
      "initial_latents", initial_latents,
      "safetensors file with the noise to begin with: latents, f32 (N, 4, h, w), unit normal; null = from the seeds");
  section.key("save_latents", save_latents, "also write latents.safetensors: the final latents, still scaled");
}

void generate(ImageModel& model, std::span<const ImageRequest> requests, const GenerateConfig& config,
              const std::optional<torch::Tensor>& initial_latents,
              const std::function<void(const GeneratedImage&)>& on_image) {
  const torch::NoGradGuard no_grad;
  const Plan plan = plan_generation(model, config);
  if (initial_latents) {
    std::vector<std::int64_t> expected = plan.latent_shape;
    expected.insert(expected.begin(), std::ssize(requests));
    if (initial_latents->sizes() != torch::IntArrayRef(expected))
      fail(Exit::usage, "generate.initial_latents has the shape ({}), but {} images of this size need ({})",
           fmt::join(initial_latents->sizes(), ", "), requests.size(), fmt::join(expected, ", "));
  }
  const auto batch_size = static_cast<std::size_t>(config.batch_size);
  for (std::size_t first = 0; first < requests.size(); first += batch_size) {
    const auto batch = requests.subspan(first, std::min(batch_size, requests.size() - first));
    const auto begin = static_cast<std::int64_t>(first);
    const torch::Tensor noise =
        initial_latents ? initial_latents->slice(0, begin, begin + std::ssize(batch)) : initial_noise(batch, plan);
    const torch::Tensor text = encode_prompts(model, batch, plan.guided).to(dtype_of(*model.unet));
    const torch::Tensor latents = denoise(model, plan, noise.to(device_of(*model.unet), torch::kFloat32), text);
    const torch::Tensor pixels = decode_pixels(model.vae, unscale(latents, model.vae->config()));
    const torch::Tensor host_latents = latents.to(torch::kCPU);
    for (std::int64_t i = 0; i < std::ssize(batch); ++i)
      on_image({first + static_cast<std::size_t>(i), to_image(pixels[i]), host_latents[i]});
  }
}

std::vector<Image> decode_latents(AutoencoderKL& vae, const torch::Tensor& latents) {
  const torch::NoGradGuard no_grad;
  std::vector<Image> images;
  for (const torch::Tensor& latent : latents.split(1)) images.push_back(to_image(decode_pixels(vae, latent)[0]));
  return images;
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
