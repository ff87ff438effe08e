#pragma once
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "millrace/models/clip_text.h"
#include "millrace/nn/layers.h"

namespace millrace {

// `vision_config` in config.json of transformers' CLIPModel.
struct CLIPVisionConfig : ClipLayerConfig {
  std::int64_t num_channels, image_size, patch_size;

  std::int64_t patches() const { return (image_size / patch_size) * (image_size / patch_size); }
};

// config.json of transformers' CLIPModel.
struct CLIPModelConfig {
  // Error(io) names `file` and the key, as CLIPTextConfig::of_clip_model.
  static CLIPModelConfig from_json(const nlohmann::json& json, const std::string& file);

  CLIPTextConfig text;
  CLIPVisionConfig vision;
  std::int64_t projection_dim;
  std::int64_t eos_token_id;  // 2, in the folders of old: the highest id of a caption is its end
};

// Both halves of CLIP (Radford et al., "Learning transferable visual models from natural language supervision") and
// their projections into one space, with transformers' names.
class CLIPModelImpl : public torch::nn::Module {
 public:
  explicit CLIPModelImpl(const CLIPModelConfig& config);
  // pixels (B, 3, image_size, image_size), normalised -> (B, projection_dim), of any length.
  torch::Tensor image_features(const torch::Tensor& pixels);
  // ids i64 (B, T), each with its end token -> (B, projection_dim).
  torch::Tensor text_features(const torch::Tensor& ids);

  const CLIPModelConfig& config() const { return config_; }

 private:
  CLIPModelConfig config_;
  ClipEmbeddings text_embeddings;
  nn::List<ClipLayer> text_layers, vision_layers;
  nn::LayerNorm final_layer_norm, pre_layrnorm, post_layernorm;  // transformers spells it so
  nn::Embedding position_embedding;
  nn::Linear text_projection, visual_projection;
  torch::Tensor class_embedding_, patch_embedding_, logit_scale_;
};
TORCH_MODULE(CLIPModel);

// The folder's network in fp32 and evaluation mode. Error(io) names file and key or tensor.
CLIPModel load_clip_model(const std::filesystem::path& folder, torch::Device device);

}  // namespace millrace
