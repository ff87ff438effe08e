#include "millrace/generate/sampling.h"

#include <torch/utils.h>

#include <algorithm>
#include <map>

#include "millrace/core/error.h"
#include "millrace/core/philox.h"
#include "millrace/diffusion/sampler.h"
#include "millrace/nn/device.h"

namespace millrace {
namespace {

torch::Device device_of(const torch::nn::Module& module) {
  return module.parameters().front().device();
}
torch::Dtype dtype_of(const torch::nn::Module& module) {
  return module.parameters().front().scalar_type();
}

// Of each sample over all other dimensions.
torch::Tensor deviations(const torch::Tensor& x) {
  return x.flatten(1).std(1).view({-1, 1, 1, 1});
}

// The U-Net's answer, pushed away from that for the negative prompt; f32.
torch::Tensor guided_output(UNet2DConditionModel& unet, const SamplingPlan& plan, const torch::Tensor& input,
                            double timestep, const torch::Tensor& text) {
  const torch::Tensor sample = plan.is_guided() ? torch::cat({input, input}) : input;
  const auto t = torch::full({1}, timestep, torch::TensorOptions(torch::kFloat32).device(input.device()));
  const torch::Tensor output = unet->forward(sample.to(dtype_of(*unet)), t, text).to(torch::kFloat32);
  if (!plan.is_guided()) return output;
  const auto parts = output.chunk(2);
  const auto guided = parts[0] + plan.guidance_scale * (parts[1] - parts[0]);
  if (plan.guidance_rescale == 0) return guided;
  const auto rescaled = guided * (deviations(parts[1]) / deviations(guided));
  return plan.guidance_rescale * rescaled + (1 - plan.guidance_rescale) * guided;
}

// Latents (B, C, h, w), not scaled -> u8 pixels (B, H, W, 3) on the host. Whether they are finite comes with them in
// one copy.
torch::Tensor decode_pixels(AutoencoderKL& vae, const torch::Tensor& latents) {
  const torch::Tensor image = vae->decode(latents.to(device_of(*vae), dtype_of(*vae))).to(torch::kFloat32);
  const torch::Tensor levels = ((image * 0.5 + 0.5).clamp(0, 1) * 255).round().to(torch::kUInt8);
  const torch::Tensor is_finite = image.isfinite().all().to(torch::kUInt8).view(1);
  const torch::Tensor bytes = torch::cat({levels.flatten(), is_finite}).to(torch::kCPU);
  if (bytes[-1].item<std::uint8_t>() == 0)
    throw Error(Exit::numerics,
                fmt::format("pictures are not finite: their latents are not, or the VAE overflows in {}",
                            dtype_name(dtype_of(*vae))),
                "float16 overflows soon: choose float32 or bfloat16 by model.dtype, in training by encode.dtype");
  return bytes.slice(0, 0, -1).view(levels.sizes()).permute({0, 2, 3, 1}).contiguous();
}

Image to_image(const torch::Tensor& pixels) {  // u8 (H, W, 3)
  const std::uint8_t* first = pixels.data_ptr<std::uint8_t>();
  return {static_cast<int>(pixels.size(1)), static_cast<int>(pixels.size(0)), {first, first + pixels.numel()}};
}

// Latents (N, C, h, w), not scaled, so many of them at once.
std::vector<Image> decode_latents(AutoencoderKL& vae, const torch::Tensor& latents, std::int64_t at_once) {
  std::vector<Image> images;
  for (const torch::Tensor& part : latents.split(at_once))
    for (const torch::Tensor& pixels : decode_pixels(vae, part).unbind()) images.push_back(to_image(pixels));
  return images;
}

// A GPU would not say which id it is, and ends the process.
void check_ids(const std::vector<std::int32_t>& ids, const std::string& text, const CLIPTextConfig& config) {
  const auto largest = std::ranges::max(ids);
  if (largest >= config.vocab_size)
    throw Error(
        Exit::io,
        fmt::format("prompt \"{}\": token id {}; the text encoder knows {}", text, largest, config.vocab_size),
        "the folder's tokenizer belongs to another text encoder, or its text encoder has no rows for the tokens "
        "that were added");
}

}  // namespace

torch::Tensor text_embeddings(CLIPTextModel& encoder, const ClipTokenizer& tokenizer,
                              std::span<const std::string> texts) {
  const torch::NoGradGuard no_grad;
  std::map<std::string, std::int64_t> rows;  // of each text among those that are encoded
  std::vector<torch::Tensor> ids;
  std::vector<std::int64_t> row_of;
  for (const auto& text : texts) {
    const auto [row, is_new] = rows.try_emplace(text, std::ssize(ids));
    row_of.push_back(row->second);
    if (!is_new) continue;
    const auto tokens = tokenizer.encode(text);
    check_ids(tokens, text, encoder->config());
    ids.push_back(torch::tensor(tokens, torch::kInt64));
  }
  const auto device = device_of(*encoder);
  const auto embeddings = encoder->forward(torch::stack(ids).to(device));
  return embeddings.index_select(0, torch::tensor(row_of, torch::kInt64).to(device));
}

torch::Tensor initial_noise(std::span<const std::uint64_t> seeds, const std::vector<std::int64_t>& latent_shape) {
  std::vector<torch::Tensor> rows;
  for (const auto seed : seeds) {
    torch::Tensor row = torch::empty(latent_shape, torch::kFloat32);
    const std::span<float> numbers(row.data_ptr<float>(), static_cast<std::size_t>(row.numel()));
    fill_normal({.seed = seed}, Purpose::initial_latents, numbers);
    rows.push_back(row);
  }
  return torch::stack(rows);
}

torch::Tensor denoise(UNet2DConditionModel& unet, const SamplingPlan& plan, const torch::Tensor& noise,
                      const torch::Tensor& text, const std::function<bool()>& gives_up) {
  const torch::NoGradGuard no_grad;
  const auto sampler = make_sampler(plan.scheduler, plan.steps);
  const auto condition = text.to(device_of(*unet), dtype_of(*unet));
  torch::Tensor sample = noise.to(device_of(*unet), torch::kFloat32) * sampler->initial_sigma();
  for (std::size_t call = 0; call < sampler->timesteps().size(); ++call) {
    if (gives_up()) return {};
    const torch::Tensor input = sampler->scale_model_input(sample, call);
    sample = sampler->step(guided_output(unet, plan, input, sampler->timesteps()[call], condition), call, sample);
  }
  return sample;
}

std::vector<Image> decode_scaled_latents(AutoencoderKL& vae, const torch::Tensor& latents) {
  constexpr std::int64_t at_once = 8;  // in float32 each of 512 x 512 pixels takes some 0.8 GB of a GPU
  const torch::NoGradGuard no_grad;
  const auto& config = vae->config();
  return decode_latents(vae, latents / config.scaling_factor + config.shift_factor.value_or(0), at_once);
}

std::vector<Image> decode_unscaled_latents(AutoencoderKL& vae, const torch::Tensor& latents) {
  const torch::NoGradGuard no_grad;
  return decode_latents(vae, latents, 1);
}

}  // namespace millrace
