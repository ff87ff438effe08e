#include "millrace/core/error.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/models/presets.h"

// The config files of the published models; source: their folders on the Hugging Face hub.
namespace millrace {

namespace {

using nlohmann::json;

constexpr const char* down = "DownBlock2D";
constexpr const char* cross_down = "CrossAttnDownBlock2D";
constexpr const char* up = "UpBlock2D";
constexpr const char* cross_up = "CrossAttnUpBlock2D";

// What all published U-Nets have in common.
json unet_of_sd() {
  return {
      {"_class_name", "UNet2DConditionModel"},
      {"_diffusers_version", diffusers_format_version},
      {"act_fn", "silu"},
      {"attention_head_dim", 8},
      {"block_out_channels", {320, 640, 1280, 1280}},
      {"center_input_sample", false},
      {"cross_attention_dim", 768},
      {"down_block_types", {cross_down, cross_down, cross_down, down}},
      {"downsample_padding", 1},
      {"flip_sin_to_cos", true},
      {"freq_shift", 0},
      {"in_channels", 4},
      {"layers_per_block", 2},
      {"mid_block_scale_factor", 1},
      {"norm_eps", 1e-5},
      {"norm_num_groups", 32},
      {"out_channels", 4},
      {"sample_size", 64},
      {"up_block_types", {up, cross_up, cross_up, cross_up}},
  };
}

json unet_of_sd2() {
  json config = unet_of_sd();
  config.update({
      {"attention_head_dim", {5, 10, 20, 20}},  // numbers of heads, in spite of the name
      {"cross_attention_dim", 1024},
      {"dual_cross_attention", false},
      {"num_class_embeds", nullptr},
      {"only_cross_attention", false},
      {"use_linear_projection", true},
  });
  return config;
}

json unet_of_sd2_v() {
  json config = unet_of_sd2();
  config.update({{"sample_size", 96}, {"upcast_attention", true}});
  return config;
}

json tiny_unet() {
  json config = unet_of_sd2();
  config.update({
      {"attention_head_dim", {2, 4, 8}},
      {"block_out_channels", {32, 64, 128}},
      {"cross_attention_dim", 64},
      {"down_block_types", {cross_down, cross_down, down}},
      {"layers_per_block", 1},
      {"norm_num_groups", 8},
      {"sample_size", 8},
      {"up_block_types", {up, cross_up, cross_up}},
  });
  return config;
}

json vae_of_sd(int sample_size) {
  return {
      {"_class_name", "AutoencoderKL"},
      {"_diffusers_version", diffusers_format_version},
      {"act_fn", "silu"},
      {"block_out_channels", {128, 256, 512, 512}},
      {"down_block_types", json::array_t(4, "DownEncoderBlock2D")},
      {"in_channels", 3},
      {"latent_channels", 4},
      {"layers_per_block", 2},
      {"norm_num_groups", 32},
      {"out_channels", 3},
      {"sample_size", sample_size},
      {"scaling_factor", 0.18215},
      {"up_block_types", json::array_t(4, "UpDecoderBlock2D")},
  };
}

json tiny_vae() {
  json config = vae_of_sd(32);
  config.update({
      {"block_out_channels", {16, 32, 64}},
      {"down_block_types", json::array_t(3, "DownEncoderBlock2D")},
      {"layers_per_block", 1},
      {"norm_num_groups", 8},
      {"up_block_types", json::array_t(3, "UpDecoderBlock2D")},
  });
  return config;
}

// The token ids are those of the published files; nothing reads them, the tokenizer has its own.
json text_encoder_of_sd1() {
  return {
      {"architectures", json::array({"CLIPTextModel"})},
      {"attention_dropout", 0.0},
      {"bos_token_id", 0},
      {"dropout", 0.0},
      {"eos_token_id", 2},
      {"hidden_act", "quick_gelu"},
      {"hidden_size", 768},
      {"initializer_factor", 1.0},
      {"initializer_range", 0.02},
      {"intermediate_size", 3072},
      {"layer_norm_eps", 1e-5},
      {"max_position_embeddings", 77},
      {"model_type", "clip_text_model"},
      {"num_attention_heads", 12},
      {"num_hidden_layers", 12},
      {"pad_token_id", 1},
      {"projection_dim", 768},
      {"torch_dtype", "float32"},
      {"vocab_size", 49408},
  };
}

json text_encoder_of_sd2() {
  json config = text_encoder_of_sd1();
  config.update({
      {"hidden_act", "gelu"},
      {"hidden_size", 1024},
      {"intermediate_size", 4096},
      {"num_attention_heads", 16},
      {"num_hidden_layers", 23},
      {"projection_dim", 512},
  });
  return config;
}

json tiny_text_encoder() {
  json config = text_encoder_of_sd1();
  config.update({
      {"hidden_size", 64},
      {"intermediate_size", 256},
      {"num_attention_heads", 4},
      {"num_hidden_layers", 2},
      {"projection_dim", 64},
  });
  return config;
}

json scheduler_of_sd(Prediction prediction) {
  json config = SchedulerConfig::stable_diffusion(prediction).to_json();
  config["_diffusers_version"] = diffusers_format_version;
  return config;
}

}  // namespace

Preset parse_preset(std::string_view name) {
  if (name == "tiny") return Preset::tiny;
  if (name == "sd1") return Preset::sd1;
  if (name == "sd2") return Preset::sd2;
  if (name == "sd2-v") return Preset::sd2_v;
  throw Error(Exit::usage, fmt::format("unknown preset '{}'", name), "presets: tiny, sd1, sd2, sd2-v");
}

PresetConfigs preset_configs(Preset preset) {
  switch (preset) {
    case Preset::tiny:
      // A frozen random text encoder must keep captions apart: embeddings of CLIP's own size (0.02) hardly do.
      return {tiny_unet(), tiny_vae(), tiny_text_encoder(), scheduler_of_sd(Prediction::epsilon), 1.0};
    case Preset::sd1:
      return {unet_of_sd(), vae_of_sd(512), text_encoder_of_sd1(), scheduler_of_sd(Prediction::epsilon)};
    case Preset::sd2:
      return {unet_of_sd2(), vae_of_sd(768), text_encoder_of_sd2(), scheduler_of_sd(Prediction::epsilon)};
    case Preset::sd2_v:
      return {unet_of_sd2_v(), vae_of_sd(768), text_encoder_of_sd2(), scheduler_of_sd(Prediction::v_prediction)};
  }
  throw bug("a preset without configs");
}

std::string_view preset_pad_token(Preset preset) {
  return preset == Preset::sd2 || preset == Preset::sd2_v ? "!" : "<|endoftext|>";
}

}  // namespace millrace
