#include "millrace/models/ldm_config.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "millrace/core/error.h"

namespace millrace {
namespace {

using nlohmann::json;
using Numbers = std::vector<std::int64_t>;

bool are_equal(const Numbers& numbers) {
  return std::ranges::adjacent_find(numbers, std::not_equal_to()) == numbers.end();
}

// Each as a multiple of the first; nothing where one is none.
std::optional<Numbers> multiples_of_first(const Numbers& numbers) {
  Numbers multiples;
  for (const auto number : numbers) {
    if (number % numbers.front() != 0) return std::nullopt;
    multiples.push_back(number / numbers.front());
  }
  return multiples;
}

std::string list(const Numbers& numbers) {
  return fmt::format("[{}]", fmt::join(numbers, ", "));
}

// By how much the levels with attention are smaller.
Numbers attention_resolutions(const UNet2DConditionConfig& unet) {
  Numbers resolutions;
  for (std::size_t level = 0; level < unet.levels(); ++level)
    if (unet.down_cross_attention[level]) resolutions.insert(resolutions.begin(), std::int64_t{1} << level);
  return resolutions;
}

// "num_heads: 8" as Stable Diffusion 1 has it, "num_head_channels: 64" as 2.
std::optional<std::string> heads_line(const UNet2DConditionConfig& unet) {
  if (are_equal(unet.heads)) return fmt::format("num_heads: {}", unet.heads.front());
  Numbers widths;
  for (std::size_t level = 0; level < unet.levels(); ++level)
    widths.push_back(unet.block_out_channels[level] / unet.heads[level]);
  if (!are_equal(widths)) return std::nullopt;
  return fmt::format("num_head_channels: {}", widths.front());
}

// Of all layers with attention; nothing where they differ.
std::optional<std::int64_t> transformer_depth(const UNet2DConditionConfig& unet) {
  Numbers depths;
  for (const auto* path : {&unet.down_transformer_layers, &unet.up_transformer_layers})
    for (const auto& level : *path) depths.insert(depths.end(), level.begin(), level.end());
  if (depths.empty() || !are_equal(depths)) return std::nullopt;
  return depths.front();
}

// Both paths have attention at the same sizes, everywhere both of itself and of the text.
bool is_symmetric(const UNet2DConditionConfig& unet) {
  return std::ranges::equal(unet.down_cross_attention,
                            std::vector<bool>(unet.up_cross_attention.rbegin(), unet.up_cross_attention.rend())) &&
         std::ranges::none_of(unet.only_cross_attention, std::identity());
}

// Not in Stable Diffusion 1's own code, which knows no such key.
constexpr const char* linear_line = "use_linear_in_transformer: true\n        ";

std::optional<std::string> find_unet_section(const UNet2DConditionConfig& unet) {
  const auto widths = multiples_of_first(unet.block_out_channels);
  const auto heads = heads_line(unet);
  const auto depth = transformer_depth(unet);
  const bool is_even = are_equal(unet.layers_per_block) && are_equal(unet.cross_attention_dim);
  if (!widths || !heads || !depth || !is_even || !is_symmetric(unet) || unet.scale_shift) return std::nullopt;
  return fmt::format(R"(    unet_config:
      target: ldm.modules.diffusionmodules.openaimodel.UNetModel
      params:
        image_size: 32
        in_channels: {}
        out_channels: {}
        model_channels: {}
        attention_resolutions: {}
        num_res_blocks: {}
        channel_mult: {}
        {}
        use_spatial_transformer: true
        {}transformer_depth: {}
        context_dim: {}
        use_checkpoint: true
        legacy: false
)",
                     unet.in_channels, unet.out_channels, unet.block_out_channels.front(),
                     list(attention_resolutions(unet)), unet.layers_per_block.front(), list(*widths), *heads,
                     unet.use_linear_projection ? linear_line : "", *depth, unet.cross_attention_dim.front());
}

std::optional<std::string> find_vae_section(const AutoencoderKLConfig& vae) {
  const auto widths = multiples_of_first(vae.coder.channels);
  if (!widths) return std::nullopt;
  return fmt::format(R"(    first_stage_config:
      target: ldm.models.autoencoder.AutoencoderKL
      params:
        embed_dim: {}
        monitor: val/rec_loss
        ddconfig:
          double_z: true
          z_channels: {}
          resolution: 256
          in_channels: {}
          out_ch: {}
          ch: {}
          ch_mult: {}
          num_res_blocks: {}
          attn_resolutions: []
          dropout: 0.0
        lossconfig:
          target: torch.nn.Identity
)",
                     vae.latent_channels, vae.latent_channels, vae.in_channels, vae.out_channels,
                     vae.coder.channels.front(), list(*widths), vae.coder.layers_per_block);
}

// OpenCLIP's encoder has 24 layers, of which Stable Diffusion 2 leaves out the last; diffusers' folder has 23.
std::string text_section(const CLIPTextConfig& text) {
  if (text.hidden_act != nn::Activation::gelu)
    return R"(    cond_stage_config:
      target: ldm.modules.encoders.modules.FrozenCLIPEmbedder
)";
  return fmt::format(R"(    cond_stage_config:
      target: ldm.modules.encoders.modules.FrozenOpenCLIPEmbedder
      params:
        freeze: true
        layer: "{}"
)",
                     text.num_hidden_layers == 23 ? "penultimate" : "last");
}

const char* parameterization(Prediction prediction) {
  switch (prediction) {
    case Prediction::epsilon:
      return "eps";
    case Prediction::v_prediction:
      return "v";
  }
  throw bug("a prediction without a name in latent-diffusion");
}

// The published numbers.
const SchedulerConfig& stable_diffusion() {
  static const auto config = SchedulerConfig::stable_diffusion(Prediction::epsilon);
  return config;
}
constexpr double scaling_of_stable_diffusion = 0.18215;
constexpr std::int64_t width_of_stable_diffusion_2 = 1024;

// 8 heads on every level, or with Stable Diffusion 2's context as many as have 64 channels each.
bool has_usual_heads(const UNet2DConditionConfig& unet, bool is_version_2) {
  for (std::size_t level = 0; level < unet.levels(); ++level)
    if (is_version_2 ? unet.block_out_channels[level] != 64 * unet.heads[level] : unet.heads[level] != 8) return false;
  return true;
}

// What latent-diffusion's code has for these keys of diffusers' config.json, whatever its .yaml says; the defaults of
// diffusers are the same.
const json& fixed_in_unets() {
  static const json fixed = {{"act_fn", "silu"},
                             {"center_input_sample", false},
                             {"downsample_padding", 1},
                             {"flip_sin_to_cos", true},
                             {"freq_shift", 0},
                             {"mid_block_scale_factor", 1},
                             {"norm_eps", 1e-5},
                             {"norm_num_groups", 32},
                             {"timestep_post_act", json()},
                             {"time_embedding_act_fn", json()},
                             {"resnet_time_scale_shift", "default"}};
  return fixed;
}
const json& fixed_in_vaes() {
  static const json fixed = {{"act_fn", "silu"},       {"mid_block_add_attention", true}, {"norm_num_groups", 32},
                             {"shift_factor", json()}, {"use_post_quant_conv", true},     {"use_quant_conv", true}};
  return fixed;
}

void add_unfixed(const char* network, const json& config, const json& fixed, std::vector<std::string>& wordless) {
  for (const auto& [key, usual] : fixed.items()) {
    const auto value = config.value(key, json());
    if (value.is_null() || value == usual || (usual == "silu" && value == "swish")) continue;
    wordless.push_back(fmt::format("{} {} of the {}", key, value.dump(), network));
  }
}

}  // namespace

std::vector<std::string> list_settings_without_yaml_key(const LdmModel& model) {
  std::vector<std::string> wordless;
  add_unfixed("U-Net", model.unet.to_json(), fixed_in_unets(), wordless);
  add_unfixed("VAE", model.vae.to_json(), fixed_in_vaes(), wordless);
  return wordless;
}

std::vector<std::string> list_settings_readers_guess(const LdmModel& model) {
  const auto& [unet, vae, text, scheduler] = model;
  const bool is_guessed = unet.cross_attention_dim.front() == width_of_stable_diffusion_2;
  std::vector<std::string> untold;
  if (!has_usual_heads(unet, is_guessed)) untold.push_back(fmt::format("heads {}", list(unet.heads)));
  if (is_guessed || scheduler.prediction != Prediction::epsilon)
    untold.push_back(fmt::format("prediction_type {}", to_string(scheduler.prediction)));
  if (vae.scaling_factor != scaling_of_stable_diffusion)
    untold.push_back(fmt::format("scaling_factor {}", vae.scaling_factor));
  if (scheduler.beta_start != stable_diffusion().beta_start || scheduler.beta_end != stable_diffusion().beta_end)
    untold.push_back(fmt::format("betas {} to {}", scheduler.beta_start, scheduler.beta_end));
  if (scheduler.num_train_timesteps != stable_diffusion().num_train_timesteps)
    untold.push_back(fmt::format("num_train_timesteps {}", scheduler.num_train_timesteps));
  return untold;
}

std::optional<std::string> find_ldm_config(const LdmModel& model) {
  const auto& [unet, vae, text, scheduler] = model;
  const auto unet_section = find_unet_section(unet), vae_section = find_vae_section(vae);
  if (!unet_section || !vae_section) return std::nullopt;
  return fmt::format(R"(model:
  target: ldm.models.diffusion.ddpm.LatentDiffusion
  params:
    parameterization: "{}"
    linear_start: {}
    linear_end: {}
    timesteps: {}
    num_timesteps_cond: 1
    log_every_t: 200
    first_stage_key: "jpg"
    cond_stage_key: "txt"
    image_size: 64
    channels: {}
    cond_stage_trainable: false
    conditioning_key: crossattn
    monitor: val/loss_simple_ema
    scale_factor: {}
    use_ema: false
)",
                     parameterization(scheduler.prediction), scheduler.beta_start, scheduler.beta_end,
                     scheduler.num_train_timesteps, unet.in_channels, vae.scaling_factor) +
         *unet_section + *vae_section + text_section(text);
}

}  // namespace millrace
