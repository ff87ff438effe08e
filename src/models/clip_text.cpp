#include "millrace/models/clip_text.h"

#include "config_reader.h"
#include "millrace/nn/attention.h"

namespace millrace {

void ClipLayerConfig::read_layers(ConfigReader& reader, std::int64_t hidden, std::int64_t intermediate,
                                  std::int64_t heads) {
  num_hidden_layers = reader.positive("num_hidden_layers", 12, most_layers);
  hidden_size = reader.positive("hidden_size", hidden);
  intermediate_size = reader.positive("intermediate_size", intermediate);
  num_attention_heads = reader.positive("num_attention_heads", heads);
  hidden_act = reader.activation("hidden_act", "quick_gelu");
  layer_norm_eps = reader.number("layer_norm_eps", 1e-5);
  if (hidden_size % num_attention_heads != 0)
    reader.fail_key("num_attention_heads", fmt::format("does not divide hidden_size = {}", hidden_size));
}

static CLIPTextConfig read_text_network(ConfigReader& reader, const nlohmann::json& json) {
  CLIPTextConfig c;
  c.source = json;
  c.is_causal = true;
  c.read_layers(reader, /*hidden=*/512, /*intermediate=*/2048, /*heads=*/8);
  c.vocab_size = reader.positive("vocab_size", 49408, most_tokens);
  c.max_position_embeddings = reader.positive("max_position_embeddings", 77);
  reader.refuse({"use_attention_mask"}, "captions are encoded without a padding mask");
  // The network is frozen, its last states are all that is used, and the tokenizer knows its own special tokens.
  reader.ignore({"architectures", "attention_dropout", "bos_token_id", "dropout", "dtype", "eos_token_id",
                 "initializer_factor", "initializer_range", "model_type", "pad_token_id", "projection_dim",
                 "torch_dtype", "transformers_version"});
  return c;
}

bool CLIPTextConfig::knows_model_type(std::string_view type) {
  return type == "clip_text_model" || type == "clip_text_model_with_projection" || type == "clip";
}

CLIPTextConfig CLIPTextConfig::from_json(const nlohmann::json& json, const std::string& file) {
  ConfigReader reader(json, file);
  const auto type = reader.text("model_type", "clip_text_model");
  if (type == "clip") {
    const auto* const part = reader.find("text_config");
    if (!part || !part->is_object()) reader.fail_key("text_config", "a CLIPModel describes its text encoder there");
    return of_clip_model(*part, file + ": text_config");
  }
  if (!knows_model_type(type))
    reader.fail_key("model_type", "this text encoder is not built here, only CLIP's (clip_text_model, clip)");
  auto config = read_text_network(reader, json);
  reader.finish();
  return config;
}

CLIPTextConfig CLIPTextConfig::of_clip_model(const nlohmann::json& json, const std::string& file) {
  ConfigReader reader(json, file);
  return read_text_network(reader, json);
}

ClipAttentionImpl::ClipAttentionImpl(const ClipLayerConfig& c)
    : heads_(c.num_attention_heads),
      is_causal_(c.is_causal),
      q_proj(c.hidden_size, c.hidden_size),
      k_proj(c.hidden_size, c.hidden_size),
      v_proj(c.hidden_size, c.hidden_size),
      out_proj(c.hidden_size, c.hidden_size) {
  register_module("q_proj", q_proj);
  register_module("k_proj", k_proj);
  register_module("v_proj", v_proj);
  register_module("out_proj", out_proj);
}

torch::Tensor ClipAttentionImpl::forward(const torch::Tensor& x) {
  return out_proj(nn::attention(q_proj(x), k_proj(x), v_proj(x), heads_, is_causal_));
}

ClipMlpImpl::ClipMlpImpl(const ClipLayerConfig& c)
    : activation_(c.hidden_act), fc1(c.hidden_size, c.intermediate_size), fc2(c.intermediate_size, c.hidden_size) {
  register_module("fc1", fc1);
  register_module("fc2", fc2);
}

torch::Tensor ClipMlpImpl::forward(const torch::Tensor& x) {
  return fc2(nn::activate(activation_, fc1(x)));
}

ClipLayerImpl::ClipLayerImpl(const ClipLayerConfig& c)
    : self_attn(c), layer_norm1(c.hidden_size, c.layer_norm_eps), layer_norm2(c.hidden_size, c.layer_norm_eps), mlp(c) {
  register_module("self_attn", self_attn);
  register_module("layer_norm1", layer_norm1);
  register_module("mlp", mlp);
  register_module("layer_norm2", layer_norm2);
}

torch::Tensor ClipLayerImpl::forward(const torch::Tensor& x) {
  const auto attended = x + self_attn(layer_norm1(x));
  return attended + mlp(layer_norm2(attended));
}

ClipEmbeddingsImpl::ClipEmbeddingsImpl(const CLIPTextConfig& c)
    : token_embedding(c.vocab_size, c.hidden_size), position_embedding(c.max_position_embeddings, c.hidden_size) {
  register_module("token_embedding", token_embedding);
  register_module("position_embedding", position_embedding);
}

torch::Tensor ClipEmbeddingsImpl::forward(const torch::Tensor& ids) {
  return token_embedding(ids) + position_embedding->weight.narrow(0, 0, ids.size(1));
}

CLIPTextModelImpl::CLIPTextModelImpl(const CLIPTextConfig& c)
    : config_(c), embeddings(c), layers(nn::make_list<ClipLayer>()), final_layer_norm(c.hidden_size, c.layer_norm_eps) {
  auto encoder = std::make_shared<torch::nn::Module>();
  auto text_model = std::make_shared<torch::nn::Module>();
  register_module("text_model", text_model);
  text_model->register_module("embeddings", embeddings);
  text_model->register_module("encoder", encoder);
  encoder->register_module("layers", layers);
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) layers->add(ClipLayer(c));
  text_model->register_module("final_layer_norm", final_layer_norm);
}

torch::Tensor CLIPTextModelImpl::forward(const torch::Tensor& ids) {
  auto hidden = embeddings(ids);
  for (auto& layer : *layers) hidden = layer(hidden);
  return final_layer_norm(hidden);
}

}  // namespace millrace
