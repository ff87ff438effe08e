// export --format ldm: the file beside the folder that is exported from the same checkpoint. Names are those of the
// first Stable Diffusion files, written down by hand; scripts/check_ldm.py reads such files with diffusers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "e2e/runs.h"
#include "e2e/weights.h"

namespace millrace::e2e {
namespace {

std::string at(const std::string& name) {
  return (workshop() / name).string();
}

// What a component of a diffusers folder holds.
Weights component(const std::string& folder, const std::string& name) {
  const auto* stem = name == "text_encoder" ? "/model" : "/diffusion_pytorch_model";
  return read_weights(at(folder) + "/" + name + stem + ".safetensors");
}

// The values of all tensors, without their names.
std::vector<std::vector<float>> values(const Weights& weights) {
  std::vector<std::vector<float>> all;
  for (const auto& [name, tensor] : weights) all.push_back(tensor);
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<std::size_t> shape(const std::string& file, const std::string& tensor) {
  const SafetensorsFile opened(at(file));
  for (const auto& info : opened.tensors())
    if (info.name == tensor) return {info.shape.begin(), info.shape.end()};
  return {};
}

// Of two steps: after one the EMA may be what the weights are.
const std::string& trained() {
  static const std::string run = [] {
    expect_success(train("ldm", "'duration=2 steps' ema.enabled=true"));
    return std::string("ldm");
  }();
  return run;
}

// For tests of what its settings make of the export: of two samples.
void train_a_step(const std::string& run, const std::string& pipeline, const std::string& settings = "") {
  expect_success(
      train(run, "model.pipeline=" + at(pipeline) + " 'duration=1 steps' batch.global=2 data.stripes=2 " + settings));
}

std::string export_ldm(const std::string& run, const std::string& file, const std::string& options = "") {
  return millrace + " export --run " + at(run) + " --format ldm --out " + at(file) + " " + options;
}

struct Name {
  const char *component, *diffusers, *file;
};

// Of the preset tiny: three levels of one layer, so the first level is input_blocks 1 and 2, and output_blocks 4 and 5.
const Name names[] = {
    {"unet", "time_embedding.linear_1.weight", "model.diffusion_model.time_embed.0.weight"},
    {"unet", "time_embedding.linear_2.bias", "model.diffusion_model.time_embed.2.bias"},
    {"unet", "conv_in.weight", "model.diffusion_model.input_blocks.0.0.weight"},
    {"unet", "down_blocks.0.resnets.0.norm1.weight", "model.diffusion_model.input_blocks.1.0.in_layers.0.weight"},
    {"unet", "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight",
     "model.diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight"},
    {"unet", "down_blocks.0.downsamplers.0.conv.weight", "model.diffusion_model.input_blocks.2.0.op.weight"},
    {"unet", "down_blocks.1.resnets.0.conv_shortcut.weight",
     "model.diffusion_model.input_blocks.3.0.skip_connection.weight"},
    {"unet", "down_blocks.2.resnets.0.time_emb_proj.weight",
     "model.diffusion_model.input_blocks.5.0.emb_layers.1.weight"},
    {"unet", "mid_block.resnets.0.conv1.weight", "model.diffusion_model.middle_block.0.in_layers.2.weight"},
    {"unet", "mid_block.attentions.0.proj_in.weight", "model.diffusion_model.middle_block.1.proj_in.weight"},
    {"unet", "mid_block.resnets.1.conv2.weight", "model.diffusion_model.middle_block.2.out_layers.3.weight"},
    {"unet", "up_blocks.0.resnets.1.norm2.weight", "model.diffusion_model.output_blocks.1.0.out_layers.0.weight"},
    {"unet", "up_blocks.0.upsamplers.0.conv.weight", "model.diffusion_model.output_blocks.1.1.conv.weight"},
    {"unet", "up_blocks.1.upsamplers.0.conv.weight", "model.diffusion_model.output_blocks.3.2.conv.weight"},
    {"unet", "up_blocks.2.attentions.1.proj_out.weight", "model.diffusion_model.output_blocks.5.1.proj_out.weight"},
    {"unet", "conv_norm_out.weight", "model.diffusion_model.out.0.weight"},
    {"unet", "conv_out.weight", "model.diffusion_model.out.2.weight"},
    {"vae", "encoder.conv_in.weight", "first_stage_model.encoder.conv_in.weight"},
    {"vae", "encoder.down_blocks.1.resnets.0.conv_shortcut.weight",
     "first_stage_model.encoder.down.1.block.0.nin_shortcut.weight"},
    {"vae", "encoder.down_blocks.0.downsamplers.0.conv.weight",
     "first_stage_model.encoder.down.0.downsample.conv.weight"},
    {"vae", "encoder.mid_block.resnets.1.conv1.weight", "first_stage_model.encoder.mid.block_2.conv1.weight"},
    {"vae", "encoder.mid_block.attentions.0.to_q.weight", "first_stage_model.encoder.mid.attn_1.q.weight"},
    {"vae", "encoder.mid_block.attentions.0.to_k.weight", "first_stage_model.encoder.mid.attn_1.k.weight"},
    {"vae", "encoder.mid_block.attentions.0.to_v.weight", "first_stage_model.encoder.mid.attn_1.v.weight"},
    {"vae", "decoder.mid_block.attentions.0.to_out.0.weight", "first_stage_model.decoder.mid.attn_1.proj_out.weight"},
    {"vae", "decoder.up_blocks.0.resnets.1.conv2.weight", "first_stage_model.decoder.up.2.block.1.conv2.weight"},
    {"vae", "decoder.up_blocks.1.upsamplers.0.conv.weight", "first_stage_model.decoder.up.1.upsample.conv.weight"},
    {"vae", "decoder.conv_norm_out.weight", "first_stage_model.decoder.norm_out.weight"},
    {"vae", "post_quant_conv.weight", "first_stage_model.post_quant_conv.weight"},
    {"text_encoder", "text_model.embeddings.position_embedding.weight",
     "cond_stage_model.transformer.text_model.embeddings.position_embedding.weight"},
    {"text_encoder", "text_model.encoder.layers.1.self_attn.q_proj.weight",
     "cond_stage_model.transformer.text_model.encoder.layers.1.self_attn.q_proj.weight"},
};

TEST(ExportLdm, HoldsWhatTheFolderHolds) {
  expect_success(export_ldm(trained(), "made/ldm.safetensors"));
  expect_success(millrace + " export --run " + at(trained()) + " --out " + at("ldm-folder"));

  const auto file = read_weights(at("made/ldm.safetensors"));
  Weights folder;
  for (const auto* part : {"unet", "vae", "text_encoder"})
    for (auto& [name, tensor] : component("ldm-folder", part)) folder[std::string(part) + "." + name] = tensor;
  EXPECT_EQ(file.size(), folder.size());
  EXPECT_TRUE(values(file) == values(folder)) << "a tensor is not there, or there twice, or has other values";
  for (const auto& name : names) {
    ASSERT_TRUE(file.contains(name.file)) << name.file;
    EXPECT_TRUE(file.at(name.file) == folder.at(std::string(name.component) + "." + name.diffusers)) << name.file;
  }
  for (const auto& [name, tensor] : file)
    EXPECT_THAT(name,
                testing::AnyOf(testing::StartsWith("model.diffusion_model."), testing::StartsWith("first_stage_model."),
                               testing::StartsWith("cond_stage_model.transformer.text_model.")));

  using Shape = std::vector<std::size_t>;
  EXPECT_EQ(shape("made/ldm.safetensors", "model.diffusion_model.middle_block.1.proj_in.weight"), (Shape{128, 128}));
  EXPECT_EQ(shape("made/ldm.safetensors", "first_stage_model.encoder.mid.attn_1.q.weight"), (Shape{64, 64, 1, 1}));
  EXPECT_EQ(shape("made/ldm.safetensors", "first_stage_model.encoder.mid.attn_1.q.bias"), (Shape{64}));
}

TEST(ExportLdm, TakesTheWeightsThatAreAskedFor) {
  expect_success(export_ldm(trained(), "ema.safetensors", "weights=ema"));
  expect_success(export_ldm(trained(), "raw.safetensors", "weights=raw"));
  expect_success(millrace + " export --run " + at(trained()) + " --out " + at("both-folder") + " weights=both");
  const std::string name = "model.diffusion_model.out.2.weight";
  const auto ema = read_weights(at("ema.safetensors")).at(name), raw = read_weights(at("raw.safetensors")).at(name);
  EXPECT_NE(ema, raw);
  EXPECT_TRUE(ema == component("both-folder", "unet").at("conv_out.weight"));
  const auto other = read_weights(at("both-folder") + "/unet/diffusion_pytorch_model.non_ema.safetensors");
  EXPECT_TRUE(raw == other.at("conv_out.weight"));
}

// Stable Diffusion 2's text encoder is OpenCLIP's: queries, keys and values are one matrix.
TEST(ExportLdm, NamesTheTextEncoderOfStableDiffusion2AsOpenClip) {
  fs::copy(workshop() / "tiny", workshop() / "gelu", fs::copy_options::recursive);
  auto config = nlohmann::json::parse(read(workshop() / "gelu/text_encoder/config.json"));
  config["hidden_act"] = "gelu";
  std::ofstream(workshop() / "gelu/text_encoder/config.json") << config;
  train_a_step("ldm2", "gelu");
  expect_success(export_ldm("ldm2", "ldm2.safetensors"));
  const auto file = read_weights(at("ldm2.safetensors"));
  const auto text = component("gelu", "text_encoder");
  const std::string prefix = "cond_stage_model.model.", block = prefix + "transformer.resblocks.1.";
  const std::string layer = "text_model.encoder.layers.1.";

  for (const auto& [theirs, ours] : std::map<std::string, std::string>{
           {prefix + "token_embedding.weight", "text_model.embeddings.token_embedding.weight"},
           {prefix + "positional_embedding", "text_model.embeddings.position_embedding.weight"},
           {prefix + "ln_final.weight", "text_model.final_layer_norm.weight"},
           {block + "ln_1.weight", layer + "layer_norm1.weight"},
           {block + "ln_2.bias", layer + "layer_norm2.bias"},
           {block + "attn.out_proj.weight", layer + "self_attn.out_proj.weight"},
           {block + "mlp.c_fc.weight", layer + "mlp.fc1.weight"},
           {block + "mlp.c_proj.weight", layer + "mlp.fc2.weight"}}) {
    ASSERT_TRUE(file.contains(theirs)) << theirs;
    EXPECT_TRUE(file.at(theirs) == text.at(ours)) << theirs;
  }
  for (const std::string part : {"weight", "bias"}) {
    std::vector<float> rows;
    for (const auto* projection : {"q_proj.", "k_proj.", "v_proj."}) {
      const auto& values = text.at(layer + "self_attn." + projection + part);
      rows.insert(rows.end(), values.begin(), values.end());
    }
    EXPECT_TRUE(file.at(block + "attn.in_proj_" + part) == rows) << part;
  }
  EXPECT_EQ(shape("ldm2.safetensors", block + "attn.in_proj_weight"), (std::vector<std::size_t>{192, 64}));
  std::size_t of_text = 0;
  for (const auto& [name, tensor] : file) of_text += name.starts_with(prefix);
  EXPECT_EQ(of_text, text.size() - 4 * 2);  // two layers, in each of them six tensors are two
}

TEST(ExportLdm, WhatReadersWouldNotKnowStandsBesideIt) {
  fs::copy(workshop() / "tiny", workshop() / "usual", fs::copy_options::recursive);
  auto vae = nlohmann::json::parse(read(workshop() / "usual/vae/config.json"));
  vae["scaling_factor"] = 0.18215;
  std::ofstream(workshop() / "usual/vae/config.json") << vae;
  auto unet = nlohmann::json::parse(read(workshop() / "usual/unet/config.json"));
  unet["attention_head_dim"] = 8;
  std::ofstream(workshop() / "usual/unet/config.json") << unet;
  train_a_step("ldm-usual", "usual");
  const auto usual = shell(export_ldm("ldm-usual", "usual.safetensors"));
  EXPECT_EQ(usual.exit_code, 0) << usual.output;
  EXPECT_FALSE(fs::exists(at("usual.yaml")));
  expect_mentions(usual, "no .yaml has words for such a network: norm_num_groups 8 of the U-Net");

  train_a_step("ldm-v", "usual", "objective.prediction=v_prediction");
  std::ofstream(at("velocity.yaml")) << "mine";
  const auto there = shell(export_ldm("ldm-v", "velocity.safetensors"));
  EXPECT_EQ(there.exit_code, 2) << there.output;
  EXPECT_EQ(read(at("velocity.yaml")), "mine");
  EXPECT_FALSE(fs::exists(at("velocity.safetensors")));

  fs::remove(at("velocity.yaml"));
  const auto exported = shell(export_ldm("ldm-v", "velocity.safetensors"));
  EXPECT_EQ(exported.exit_code, 0) << exported.output;
  expect_mentions(exported, "velocity.yaml tells readers what such a file cannot: prediction_type v_prediction");
  EXPECT_THAT(read(at("velocity.yaml")), testing::HasSubstr("parameterization: \"v\""));

  train_a_step("ldm-zero", "usual", "objective.prediction=v_prediction objective.zero_terminal_snr=true");
  expect_mentions(shell(export_ldm("ldm-zero", "zero.safetensors")), "do not know the noise schedule of this run");
}

TEST(ExportLdm, RefusesWhatAFileHasNoRoomFor) {
  const auto both = shell(export_ldm(trained(), "both.safetensors", "weights=both"));
  EXPECT_EQ(both.exit_code, 2);
  expect_mentions(both, "one file has room for one U-Net");
  EXPECT_FALSE(fs::exists(workshop() / "both.safetensors"));

  const auto folder = shell(export_ldm(trained(), "a_folder"));
  EXPECT_EQ(folder.exit_code, 2);
  expect_mentions(folder, "which ends in .safetensors");

  std::ofstream(workshop() / "there.safetensors") << "mine";
  const auto there = shell(export_ldm(trained(), "there.safetensors"));
  EXPECT_EQ(there.exit_code, 2);
  EXPECT_EQ(read(workshop() / "there.safetensors"), "mine");
}

}  // namespace
}  // namespace millrace::e2e
