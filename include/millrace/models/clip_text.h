#pragma once
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "millrace/nn/activation.h"
#include "millrace/nn/layers.h"

namespace millrace {

class ConfigReader;

// The layers of a transformer.
struct ClipLayerConfig {
  // The keys of a config.json that tell of them; the sizes are what is meant where it has none.
  void read_layers(ConfigReader& reader, std::int64_t hidden, std::int64_t intermediate, std::int64_t heads);

  std::int64_t num_hidden_layers, hidden_size, intermediate_size, num_attention_heads;
  nn::Activation hidden_act;
  double layer_norm_eps;
  bool is_causal;
};

// text_encoder/config.json of transformers' CLIPTextModel.
struct CLIPTextConfig : ClipLayerConfig {
  static bool knows_model_type(std::string_view type);  // config.json's model_type
  // Error(io) names `file` and the key for wrong values and for networks that are not built here; a key that is unknown
  // gives a warning. Of a CLIPModel (model_type clip) its text_config, as transformers' CLIPTextModel takes it.
  static CLIPTextConfig from_json(const nlohmann::json& json, const std::string& file = "text_encoder/config.json");
  // The same of a CLIPModel's text_config, where transformers used to write every key that any network has: those that
  // are unknown give no warning.
  static CLIPTextConfig of_clip_model(const nlohmann::json& json, const std::string& file);
  // The keys as they were read.
  const nlohmann::json& to_json() const { return source; }

  std::int64_t vocab_size, max_position_embeddings;

  nlohmann::json source;
};

// Self-attention with biases.
class ClipAttentionImpl : public torch::nn::Module {
 public:
  explicit ClipAttentionImpl(const ClipLayerConfig& config);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  std::int64_t heads_;
  bool is_causal_;
  nn::Linear q_proj, k_proj, v_proj, out_proj;
};
TORCH_MODULE(ClipAttention);

class ClipMlpImpl : public torch::nn::Module {
 public:
  explicit ClipMlpImpl(const ClipLayerConfig& config);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  nn::Activation activation_;
  nn::Linear fc1, fc2;
};
TORCH_MODULE(ClipMlp);

class ClipLayerImpl : public torch::nn::Module {
 public:
  explicit ClipLayerImpl(const ClipLayerConfig& config);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  ClipAttention self_attn;
  nn::LayerNorm layer_norm1, layer_norm2;
  ClipMlp mlp;
};
TORCH_MODULE(ClipLayer);

class ClipEmbeddingsImpl : public torch::nn::Module {
 public:
  explicit ClipEmbeddingsImpl(const CLIPTextConfig& config);
  // ids (B, T) -> (B, T, hidden_size): the token's row plus that of its position.
  torch::Tensor forward(const torch::Tensor& ids);

 private:
  nn::Embedding token_embedding, position_embedding;
};
TORCH_MODULE(ClipEmbeddings);

// The text half of CLIP (Radford et al., "Learning transferable visual models from natural language supervision"), with
// transformers' names under the prefix `text_model.`, as the published folders have them.
class CLIPTextModelImpl : public torch::nn::Module {
 public:
  explicit CLIPTextModelImpl(const CLIPTextConfig& config);
  // ids i64 (B, T), T <= max_position_embeddings -> (B, T, hidden_size) after the final norm. Causal, no padding mask.
  torch::Tensor forward(const torch::Tensor& ids);

  const CLIPTextConfig& config() const { return config_; }

 private:
  CLIPTextConfig config_;
  ClipEmbeddings embeddings;
  nn::List<ClipLayer> layers;
  nn::LayerNorm final_layer_norm;
};
TORCH_MODULE(CLIPTextModel);

}  // namespace millrace
