#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "millrace/nn/activation.h"

namespace millrace {

// unet/config.json of diffusers' UNet2DConditionModel. Vectors have one value per level, in the order of the down path.
struct UNet2DConditionConfig {
  // Error(io) names `file` and the key for wrong values and for networks that are not built here; a key that is unknown
  // gives a warning.
  static UNet2DConditionConfig from_json(const nlohmann::json& json, const std::string& file = "unet/config.json");
  // The keys as they were read.
  const nlohmann::json& to_json() const { return source; }

  std::size_t levels() const { return block_out_channels.size(); }
  std::int64_t time_channels() const { return time_embedding_dim.value_or(4 * block_out_channels[0]); }

  std::int64_t in_channels, out_channels;
  // Height and width of the latents; nothing = any. One number below 64 in a file of diffusers before 0.9 means 64.
  std::optional<std::vector<std::int64_t>> sample_size;
  bool center_input_sample, flip_sin_to_cos;
  double freq_shift;
  std::vector<bool> down_cross_attention;  // CrossAttnDownBlock2D or DownBlock2D
  std::vector<bool> up_cross_attention;    // in the order of the up path
  enum class Mid { none, resnet, cross_attention } mid;
  std::vector<bool> only_cross_attention;
  std::vector<std::int64_t> block_out_channels;
  std::vector<std::int64_t> layers_per_block;
  std::vector<std::int64_t> heads;  // the file calls it attention_head_dim
  std::vector<std::int64_t> cross_attention_dim;
  std::vector<std::vector<std::int64_t>> down_transformer_layers;  // [level][layer]
  std::vector<std::vector<std::int64_t>> up_transformer_layers;    // [level of the up path][layer]
  std::int64_t downsample_padding;
  double mid_block_scale_factor, dropout, norm_eps;
  nn::Activation act_fn;
  std::optional<nn::Activation> time_embedding_act_fn, timestep_post_act;
  std::int64_t norm_num_groups;
  bool use_linear_projection;
  bool scale_shift;  // resnet_time_scale_shift is "scale_shift"
  std::optional<std::int64_t> time_embedding_dim;
  std::int64_t conv_in_kernel, conv_out_kernel;

  nlohmann::json source;

  bool operator==(const UNet2DConditionConfig&) const = default;
};

// Whether the network of such a file takes more than noisy latents and the states of one text encoder: another
// condition, or a picture, mask or depth beside the latents.
bool takes_more_than_text(const nlohmann::json& json);

}  // namespace millrace
