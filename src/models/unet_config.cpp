#include "millrace/models/unet_config.h"

#include <algorithm>
#include <initializer_list>
#include <mutex>
#include <numeric>
#include <utility>

#include "config_reader.h"

namespace millrace {

namespace {

using Json = nlohmann::json;
using Levels = std::vector<std::vector<std::int64_t>>;

constexpr std::int64_t most_transformer_layers = 10'000;  // of the down path, and of the up path

// Which blocks have cross-attention. Files of the first diffusers versions write "UNetRes" in front of the names.
std::vector<bool> read_block_types(ConfigReader& reader, std::string_view key, std::string_view plain,
                                   std::string_view cross_attention, const std::vector<std::string>& fallback) {
  std::vector<bool> result;
  for (const std::string& type : reader.texts(key, fallback)) {
    const std::string_view name = std::string_view(type).substr(type.starts_with("UNetRes") ? 7 : 0);
    if (name != plain && name != cross_attention) {
      reader.fail_key(key,
                      fmt::format("block type {} is not built here, only {} and {}", type, plain, cross_attention));
    }
    result.push_back(name == cross_attention);
  }
  return result;
}

UNet2DConditionConfig::Mid read_mid_type(ConfigReader& reader, const Json& json) {
  using Mid = UNet2DConditionConfig::Mid;
  constexpr auto key = "mid_block_type";
  const std::string type = reader.text(key, "UNetMidBlock2DCrossAttn");
  if (json.contains(key) && json[key].is_null()) return Mid::none;
  if (type == "UNetMidBlock2DCrossAttn") return Mid::cross_attention;
  if (type == "UNetMidBlock2D") return Mid::resnet;
  reader.fail_key(key, "only UNetMidBlock2DCrossAttn, UNetMidBlock2D and null are built here");
}

// `value` is one number for all layers of a level, or a list with one for each.
std::vector<std::int64_t> layers_of_level(ConfigReader& reader, std::string_view key, const Json& value,
                                          std::int64_t layers) {
  const auto is_number = [](const Json& v) { return is_whole(v, 1, most_layers); };
  if (is_number(value)) return std::vector(static_cast<std::size_t>(layers), value.get<std::int64_t>());
  if (!value.is_array() || value.size() < static_cast<std::size_t>(layers) || !std::ranges::all_of(value, is_number)) {
    reader.fail_key(key,
                    fmt::format("expected a number from 1 to {}, or {} of them, for each level", most_layers, layers));
  }
  return value.get<std::vector<std::int64_t>>();
}

Levels read_transformer_layers(ConfigReader& reader, std::string_view key, const Json& value,
                               const std::vector<std::int64_t>& layers_per_block) {
  if (value.is_array() && value.size() != layers_per_block.size()) {
    reader.fail_key(key, fmt::format("expected {} values, one for each level", layers_per_block.size()));
  }
  Levels result;
  for (std::size_t level = 0; level < layers_per_block.size(); ++level) {
    result.push_back(layers_of_level(reader, key, value.is_array() ? value[level] : value, layers_per_block[level]));
  }
  std::int64_t all = 0;
  for (const auto& level : result) all = std::accumulate(level.begin(), level.end(), all);
  if (all > most_transformer_layers)
    reader.fail_key(key, fmt::format("more than {} layers in all", most_transformer_layers));
  return result;
}

// Values of the up path, where every block has a layer more.
void read_all_transformer_layers(ConfigReader& reader, UNet2DConditionConfig& c) {
  constexpr std::string_view key = "transformer_layers_per_block", up_key = "reverse_transformer_layers_per_block";
  const Json* found = reader.find(key);
  const Json value = found ? *found : Json(1);
  c.down_transformer_layers = read_transformer_layers(reader, key, value, c.layers_per_block);

  auto up_layers = c.layers_per_block;
  std::ranges::reverse(up_layers);
  for (auto& layers : up_layers) ++layers;
  const Json* up = reader.find(up_key);
  if (!up && value.is_array() && std::ranges::any_of(value, [](const Json& v) { return v.is_array(); })) {
    reader.fail_key(up_key, "is needed where transformer_layers_per_block holds lists");
  }
  Json up_value = up ? *up : value;
  if (!up && up_value.is_array()) std::reverse(up_value.begin(), up_value.end());
  c.up_transformer_layers = read_transformer_layers(reader, up ? up_key : key, up_value, up_layers);
}

std::optional<nn::Activation> read_optional_activation(ConfigReader& reader, std::string_view key) {
  if (!reader.find(key)) return std::nullopt;
  return reader.activation(key, "");
}

void read_levels(ConfigReader& reader, UNet2DConditionConfig& c) {
  c.block_out_channels = reader.positives("block_out_channels", {320, 640, 1280, 1280});
  const std::string down = "CrossAttnDownBlock2D", up = "CrossAttnUpBlock2D";
  c.down_cross_attention =
      read_block_types(reader, "down_block_types", "DownBlock2D", down, {down, down, down, "DownBlock2D"});
  c.up_cross_attention = read_block_types(reader, "up_block_types", "UpBlock2D", up, {"UpBlock2D", up, up, up});
  for (const auto& [key, count] : {std::pair{"down_block_types", c.down_cross_attention.size()},
                                   std::pair{"up_block_types", c.up_cross_attention.size()}}) {
    if (count != c.levels()) {
      reader.fail_key(key, fmt::format("expected {} names, as many as block_out_channels", c.levels()));
    }
  }
  c.layers_per_block = reader.positive_per_level("layers_per_block", 2, c.levels(), most_layers);
  c.heads = reader.positive_per_level("attention_head_dim", 8, c.levels());
  c.cross_attention_dim = reader.positive_per_level("cross_attention_dim", 1280, c.levels());
  c.only_cross_attention = reader.boolean_per_level("only_cross_attention", false, c.levels());
  read_all_transformer_layers(reader, c);
}

// A level's attention in the down and the up path, and in the middle, where the last level goes on.
bool has_attention(const UNet2DConditionConfig& c, std::size_t level) {
  const bool is_last = level + 1 == c.levels();
  return c.down_cross_attention[level] || c.up_cross_attention[c.levels() - 1 - level] ||
         (is_last && c.mid == UNet2DConditionConfig::Mid::cross_attention);
}

// Heads without channels would make weights that are not numbers.
void check_heads(ConfigReader& reader, const UNet2DConditionConfig& c) {
  for (std::size_t level = 0; level < c.levels(); ++level) {
    const auto channels = c.block_out_channels[level];
    if (has_attention(c, level) && c.heads[level] > channels)
      reader.fail_key("attention_head_dim",
                      fmt::format("is the number of heads, and more than the {} channels of a level", channels));
  }
}

void read_resnets(ConfigReader& reader, UNet2DConditionConfig& c) {
  c.act_fn = reader.activation("act_fn", "silu");
  c.norm_eps = reader.number("norm_eps", 1e-5);
  c.norm_num_groups = reader.positive("norm_num_groups", 32);
  if (c.source.contains("norm_num_groups") && c.source["norm_num_groups"].is_null()) {
    reader.fail_key("norm_num_groups", "networks without norms are not built here");
  }
  for (const auto channels : c.block_out_channels) {
    if (channels % c.norm_num_groups != 0) {
      reader.fail_key("norm_num_groups", fmt::format("does not divide the {} channels of a level", channels));
    }
  }
  c.dropout = reader.number("dropout", 0);
  c.downsample_padding = reader.integer("downsample_padding", 1, most_kernel);
  c.mid_block_scale_factor = reader.number("mid_block_scale_factor", 1);
  const std::string scale_shift = reader.text("resnet_time_scale_shift", "default");
  if (scale_shift != "default" && scale_shift != "scale_shift") {
    reader.fail_key("resnet_time_scale_shift", "only default and scale_shift are built here");
  }
  c.scale_shift = scale_shift == "scale_shift";
}

// Whether diffusers takes a size below 64 for a mistake: files of the first versions have one where 64 is meant.
bool has_size_of_old_files(ConfigReader& reader) {
  const Json* found = reader.find("_diffusers_version");
  if (!found || !found->is_string()) return false;
  const auto& version = found->get_ref<const std::string&>();
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const bool is_of_one_digit = version.size() == 3 || (version.size() > 3 && !is_digit(version[3]));
  return version.starts_with("0.") && is_of_one_digit && version[2] >= '0' && version[2] <= '8';
}

std::vector<std::int64_t> read_sample_size(ConfigReader& reader) {
  constexpr std::string_view key = "sample_size";
  constexpr std::int64_t usual = 64;
  if (reader.find(key)->is_array()) {
    auto sides = reader.positives(key, {}, most_side);
    if (sides.size() != 2) reader.fail_key(key, "expected one number, or height and width");
    return sides;
  }
  const std::int64_t size = reader.positive(key, 1, most_side);
  if (size >= usual || !has_size_of_old_files(reader)) return {size, size};
  static std::once_flag warned;
  std::call_once(warned, [&] {
    reader.warn_key(key, fmt::format("taken as {}, as diffusers does in files of its versions below 0.9", usual));
  });
  return {usual, usual};
}

void read_ends(ConfigReader& reader, UNet2DConditionConfig& c) {
  c.in_channels = reader.positive("in_channels", 4);
  c.out_channels = reader.positive("out_channels", 4);
  c.conv_in_kernel = reader.positive("conv_in_kernel", 3, most_kernel);
  c.conv_out_kernel = reader.positive("conv_out_kernel", 3, most_kernel);
  c.center_input_sample = reader.boolean("center_input_sample", false);
  if (reader.find("sample_size")) c.sample_size = read_sample_size(reader);
  c.flip_sin_to_cos = reader.boolean("flip_sin_to_cos", true);
  c.freq_shift = reader.number("freq_shift", 0);
  if (reader.find("time_embedding_dim")) c.time_embedding_dim = reader.positive("time_embedding_dim", 1);
  if (reader.text("time_embedding_type", "positional") != "positional") {
    reader.fail_key("time_embedding_type", "only positional is built here");
  }
  c.time_embedding_act_fn = read_optional_activation(reader, "time_embedding_act_fn");
  c.timestep_post_act = read_optional_activation(reader, "timestep_post_act");
}

// Inputs besides noisy latents and the states of one text encoder.
const std::initializer_list<std::string_view> other_conditions = {"encoder_hid_dim", "encoder_hid_dim_type",
                                                                  "addition_embed_type", "time_cond_proj_dim"};
const std::initializer_list<std::string_view> class_conditions = {"class_embed_type", "num_class_embeds",
                                                                  "class_embeddings_concat"};

void refuse_other_networks(ConfigReader& reader) {
  reader.refuse({"num_attention_heads"}, "diffusers refuses it too: the number of heads stands in attention_head_dim");
  reader.refuse({"dual_cross_attention"}, "dual cross-attention is not built here");
  reader.refuse(other_conditions,
                "only text embeddings of width cross_attention_dim condition the networks of Stable Diffusion 1 and 2; "
                "this is of another family, such as SDXL");
  reader.refuse(class_conditions, "class conditioning is not built here");
  if (reader.text("attention_type", "default") != "default") {
    reader.fail_key("attention_type", "only default is built here");
  }
}

// Keys that have no effect on these block types in diffusers either; upcast_attention acts only outside fused
// attention.
void ignore_keys_without_effect(ConfigReader& reader) {
  reader.ignore({"upcast_attention", "mid_block_only_cross_attention", "cross_attention_norm", "resnet_skip_time_act",
                 "resnet_out_scale_factor", "addition_time_embed_dim", "addition_embed_type_num_heads",
                 "projection_class_embeddings_input_dim"});
}

}  // namespace

UNet2DConditionConfig UNet2DConditionConfig::from_json(const nlohmann::json& json, const std::string& file) {
  ConfigReader reader(json, file);
  UNet2DConditionConfig c;
  c.source = json;
  reader.check_class("UNet2DConditionModel");
  read_levels(reader, c);
  c.mid = read_mid_type(reader, json);
  check_heads(reader, c);
  read_resnets(reader, c);
  read_ends(reader, c);
  c.use_linear_projection = reader.boolean("use_linear_projection", false);
  refuse_other_networks(reader);
  ignore_keys_without_effect(reader);
  reader.finish();
  return c;
}

bool takes_more_than_text(const nlohmann::json& json) {
  ConfigReader reader(json, "unet/config.json");
  const auto channels = [&](std::string_view key) {
    const Json* found = reader.find(key);
    return found ? *found : Json(4);
  };
  const auto is_set = [&](std::string_view key) { return reader.is_set(key); };
  return channels("in_channels") != channels("out_channels") || std::ranges::any_of(other_conditions, is_set) ||
         std::ranges::any_of(class_conditions, is_set);
}

}  // namespace millrace
