// Names of a single-file checkpoint. scripts/check_ldm.py compares whole files with diffusers' reader.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "millrace/core/error.h"
#include "millrace/models/ldm_config.h"
#include "millrace/models/ldm_export.h"
#include "millrace/models/presets.h"
#include "millrace/models/unet_2d_condition.h"
#include "millrace/models/weights.h"
#include "millrace/nn/weights.h"

namespace millrace {
namespace {

struct Checkpoint {
  Tensors unet, vae, text;
  PresetConfigs configs;

  explicit Checkpoint(Preset preset) : configs(preset_configs(preset)) {
    const auto unet_config = UNet2DConditionConfig::from_json(configs.unet);
    unet = ldm_unet(unet_config, weights_of(*UNet2DConditionModel(unet_config)));
    const auto vae_config = AutoencoderKLConfig::from_json(configs.vae);
    vae = ldm_vae(vae_config, weights_of(*AutoencoderKL(vae_config)));
    const auto text_config = CLIPTextConfig::from_json(configs.text_encoder);
    text = ldm_text_encoder(text_config, weights_of(*CLIPTextModel(text_config)));
  }
};

// Names and shapes as they stand in the published files v1-5-pruned and v2-1_768-ema-pruned.
TEST(Ldm, NamesOfThePublishedFiles) {
  const Checkpoint one(Preset::sd1);
  EXPECT_EQ(one.unet.size(), 686u);
  EXPECT_EQ(one.vae.size(), 248u);
  for (const char* name :
       {"time_embed.0.weight", "time_embed.2.bias", "input_blocks.0.0.weight", "input_blocks.1.0.in_layers.0.weight",
        "input_blocks.1.1.transformer_blocks.0.attn1.to_q.weight", "input_blocks.3.0.op.weight",
        "input_blocks.4.0.skip_connection.weight", "input_blocks.11.0.out_layers.3.weight",
        "middle_block.0.emb_layers.1.weight", "middle_block.1.proj_out.weight", "middle_block.2.in_layers.2.bias",
        "output_blocks.2.1.conv.weight", "output_blocks.5.2.conv.weight", "output_blocks.8.2.conv.bias",
        "output_blocks.11.1.norm.weight", "out.0.weight", "out.2.bias"})
    EXPECT_TRUE(one.unet.contains(std::string("model.diffusion_model.") + name)) << name;
  EXPECT_EQ(one.unet.at("model.diffusion_model.input_blocks.1.1.proj_in.weight").dim(), 4);
  for (const char* name :
       {"encoder.conv_in.weight", "encoder.down.0.block.1.conv2.weight", "encoder.down.1.block.0.nin_shortcut.weight",
        "encoder.down.2.downsample.conv.weight", "encoder.mid.block_1.norm1.weight", "encoder.mid.attn_1.norm.bias",
        "encoder.norm_out.weight", "encoder.conv_out.weight", "decoder.mid.block_2.conv1.weight",
        "decoder.up.3.block.0.conv1.weight", "decoder.up.1.upsample.conv.weight",
        "decoder.up.0.block.0.nin_shortcut.weight", "quant_conv.weight", "post_quant_conv.bias"})
    EXPECT_TRUE(one.vae.contains(std::string("first_stage_model.") + name)) << name;
  EXPECT_EQ(one.vae.at("first_stage_model.decoder.mid.attn_1.proj_out.weight").sizes(),
            torch::IntArrayRef({512, 512, 1, 1}));
  EXPECT_TRUE(one.text.contains("cond_stage_model.transformer.text_model.encoder.layers.11.self_attn.q_proj.weight"));

  const Checkpoint two(Preset::sd2);
  EXPECT_EQ(two.unet.at("model.diffusion_model.input_blocks.1.1.proj_in.weight").dim(), 2);
  const std::string text = "cond_stage_model.model.";
  EXPECT_EQ(two.text.at(text + "transformer.resblocks.22.attn.in_proj_weight").sizes(),
            torch::IntArrayRef({3072, 1024}));
  EXPECT_EQ(two.text.at(text + "positional_embedding").sizes(), torch::IntArrayRef({77, 1024}));
  for (const char* name : {"token_embedding.weight", "ln_final.bias", "transformer.resblocks.0.ln_1.weight",
                           "transformer.resblocks.0.mlp.c_fc.weight", "transformer.resblocks.0.mlp.c_proj.bias",
                           "transformer.resblocks.0.attn.out_proj.weight"})
    EXPECT_TRUE(two.text.contains(text + name)) << name;
}

TEST(Ldm, QueriesKeysAndValuesLieInThisOrder) {
  auto json = preset_configs(Preset::tiny).text_encoder;
  json["hidden_act"] = "gelu";
  const auto config = CLIPTextConfig::from_json(json);
  CLIPTextModel model(config);
  double value = 0;
  for (auto& [name, parameter] : weights_of(*model)) parameter.detach().fill_(++value);
  const auto tensors = weights_of(*model);
  const auto named = ldm_text_encoder(config, tensors);
  const auto fused = named.at("cond_stage_model.model.transformer.resblocks.1.attn.in_proj_bias").chunk(3);
  int part = 0;
  for (const char* projection : {"q_proj", "k_proj", "v_proj"})
    for (const auto& [name, tensor] : tensors)
      if (name.ends_with(std::string("layers.1.self_attn.") + projection + ".bias")) {
        EXPECT_TRUE(torch::equal(fused[part++], tensor)) << name;
      }
  EXPECT_EQ(part, 3);
}

TEST(Ldm, RefusesWhatHasNoNames) {
  auto json = preset_configs(Preset::tiny).unet;
  json["mid_block_type"] = nullptr;
  const auto config = UNet2DConditionConfig::from_json(json);
  EXPECT_THROW(ldm_unet(config, {}), Error);
}

LdmModel describe(Preset preset) {
  const auto configs = preset_configs(preset);
  return {UNet2DConditionConfig::from_json(configs.unet), AutoencoderKLConfig::from_json(configs.vae),
          CLIPTextConfig::from_json(configs.text_encoder),
          SchedulerConfig::from_json(nlohmann::ordered_json::parse(configs.scheduler.dump()))};
}

std::vector<std::string> lines_of(const std::optional<std::string>& text) {
  std::vector<std::string> lines;
  std::istringstream in(text.value());
  for (std::string line; std::getline(in, line);) lines.push_back(line.substr(line.find_first_not_of(' ')));
  return lines;
}

using testing::Contains, testing::ElementsAre, testing::IsEmpty, testing::IsSupersetOf, testing::Not;

// Settings of the published v1-inference.yaml and v2-inference-v.yaml.
TEST(LdmConfig, HasTheSettingsOfThePublishedFiles) {
  const auto one = lines_of(find_ldm_config(describe(Preset::sd1)));
  const auto two = lines_of(find_ldm_config(describe(Preset::sd2_v)));
  for (const auto& lines : {one, two})
    EXPECT_THAT(lines, IsSupersetOf({"target: ldm.models.diffusion.ddpm.LatentDiffusion",
                                     "linear_start: 0.00085",
                                     "linear_end: 0.012",
                                     "timesteps: 1000",
                                     "scale_factor: 0.18215",
                                     "in_channels: 4",
                                     "out_channels: 4",
                                     "model_channels: 320",
                                     "attention_resolutions: [4, 2, 1]",
                                     "num_res_blocks: 2",
                                     "channel_mult: [1, 2, 4, 4]",
                                     "transformer_depth: 1",
                                     "legacy: false",
                                     "embed_dim: 4",
                                     "z_channels: 4",
                                     "in_channels: 3",
                                     "out_ch: 3",
                                     "ch: 128",
                                     "ch_mult: [1, 2, 4, 4]",
                                     "attn_resolutions: []"}));
  EXPECT_THAT(one, IsSupersetOf({"parameterization: \"eps\"", "num_heads: 8", "context_dim: 768",
                                 "target: ldm.modules.encoders.modules.FrozenCLIPEmbedder"}));
  EXPECT_THAT(one, Not(Contains(testing::HasSubstr("use_linear"))));
  EXPECT_THAT(two, IsSupersetOf({"parameterization: \"v\"", "num_head_channels: 64", "context_dim: 1024",
                                 "use_linear_in_transformer: true", "layer: \"penultimate\"",
                                 "target: ldm.modules.encoders.modules.FrozenOpenCLIPEmbedder"}));
}

TEST(LdmConfig, IsNeededWhereReadersWouldGuess) {
  EXPECT_THAT(list_settings_readers_guess(describe(Preset::sd1)), IsEmpty());
  EXPECT_THAT(list_settings_readers_guess(describe(Preset::sd2)), ElementsAre("prediction_type epsilon"));
  EXPECT_THAT(list_settings_readers_guess(describe(Preset::sd2_v)), ElementsAre("prediction_type v_prediction"));
  auto model = describe(Preset::sd1);
  model.scheduler = model.scheduler.with_keys({{"prediction_type", "v_prediction"}, {"beta_end", 0.02}});
  model.vae.scaling_factor = 0.5;
  EXPECT_THAT(list_settings_readers_guess(model),
              ElementsAre("prediction_type v_prediction", "scaling_factor 0.5", "betas 0.00085 to 0.02"));
  EXPECT_THAT(lines_of(find_ldm_config(model)),
              IsSupersetOf({"parameterization: \"v\"", "scale_factor: 0.5", "linear_end: 0.02"}));
}

TEST(LdmConfig, IsNeededForOtherHeadsAndTimesteps) {
  auto model = describe(Preset::sd1);
  model.unet.heads = {5, 10, 20, 20};  // as Stable Diffusion 2 has them, for a context of 768
  model.scheduler = model.scheduler.with_keys({{"num_train_timesteps", 500}});
  EXPECT_THAT(list_settings_readers_guess(model), ElementsAre("heads [5, 10, 20, 20]", "num_train_timesteps 500"));
  EXPECT_THAT(lines_of(find_ldm_config(model)), IsSupersetOf({"num_head_channels: 64", "timesteps: 500"}));
  model = describe(Preset::sd2);
  model.unet.heads = {8, 8, 8, 8};
  EXPECT_THAT(list_settings_readers_guess(model), ElementsAre("heads [8, 8, 8, 8]", "prediction_type epsilon"));
}

TEST(LdmConfig, HasNoWordsForWhatReadersTakeFromTheirCode) {
  for (const auto preset : {Preset::sd1, Preset::sd2, Preset::sd2_v})
    EXPECT_THAT(list_settings_without_yaml_key(describe(preset)), IsEmpty());
  EXPECT_THAT(list_settings_without_yaml_key(describe(Preset::tiny)),
              ElementsAre("norm_num_groups 8 of the U-Net", "norm_num_groups 8 of the VAE"));
  auto unet = preset_configs(Preset::sd1).unet, vae = preset_configs(Preset::sd1).vae;
  unet.update({{"act_fn", "gelu"}, {"norm_eps", 1e-6}, {"flip_sin_to_cos", false}, {"freq_shift", 1}});
  unet["mid_block_scale_factor"] = 2;
  vae.update({{"act_fn", "swish"}, {"mid_block_add_attention", false}, {"use_quant_conv", false}});
  vae["shift_factor"] = 0.5;
  auto model = describe(Preset::sd1);
  model.unet = UNet2DConditionConfig::from_json(unet);
  model.vae = AutoencoderKLConfig::from_json(vae);
  EXPECT_THAT(list_settings_without_yaml_key(model),
              ElementsAre("act_fn \"gelu\" of the U-Net", "flip_sin_to_cos false of the U-Net",
                          "freq_shift 1 of the U-Net", "mid_block_scale_factor 2 of the U-Net",
                          "norm_eps 1e-06 of the U-Net", "mid_block_add_attention false of the VAE",
                          "shift_factor 0.5 of the VAE", "use_quant_conv false of the VAE"));
}

TEST(LdmConfig, HasNoWordsForUNetsOfAnotherBuild) {
  auto model = describe(Preset::sd1);
  model.unet.layers_per_block[1] = 3;
  EXPECT_EQ(find_ldm_config(model), std::nullopt);
  model = describe(Preset::sd1);
  model.unet.block_out_channels[1] = 321;
  EXPECT_EQ(find_ldm_config(model), std::nullopt);
}

}  // namespace
}  // namespace millrace
