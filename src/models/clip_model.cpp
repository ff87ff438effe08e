#include "millrace/models/clip_model.h"

#include <torch/utils.h>

#include "config_reader.h"
#include "millrace/core/error.h"
#include "millrace/io/json.h"
#include "millrace/models/weights.h"

namespace millrace {
namespace {

CLIPVisionConfig read_vision(const nlohmann::json& json, const std::string& file) {
  ConfigReader reader(json, file);
  CLIPVisionConfig c;
  c.is_causal = false;
  c.read_layers(reader, /*hidden=*/768, /*intermediate=*/3072, /*heads=*/12);
  c.num_channels = reader.positive("num_channels", 3);
  c.image_size = reader.positive("image_size", 224, most_side);
  c.patch_size = reader.positive("patch_size", 32, most_kernel);
  if (c.num_channels != 3) reader.fail_key("num_channels", "is not 3: pictures are RGB");
  return c;  // what else these files hold (generation, dropout) changes nothing in a frozen network
}

const nlohmann::json& part_of(const nlohmann::json& json, const char* name, const std::string& file) {
  const auto part = json.find(name);
  if (part == json.end() || !part->is_object())
    fail(Exit::io, "{}: no {}: not the config.json of a CLIPModel", file, name);
  return *part;
}

// A module that only has a name.
std::shared_ptr<torch::nn::Module> make_branch(torch::nn::Module& parent, const std::string& name) {
  return parent.register_module(name, std::make_shared<torch::nn::Module>());
}

// Where each caption ends, i64 (B).
torch::Tensor end_places(const torch::Tensor& ids, std::int64_t eos_token_id) {
  if (eos_token_id == 2) return ids.argmax(-1);
  return (ids == eos_token_id).to(torch::kInt32).argmax(-1);
}

}  // namespace

CLIPModelConfig CLIPModelConfig::from_json(const nlohmann::json& json, const std::string& file) {
  const auto& text = part_of(json, "text_config", file);
  ConfigReader reader(json, file), text_reader(text, file + ": text_config");
  return {.text = CLIPTextConfig::of_clip_model(text, file + ": text_config"),
          .vision = read_vision(part_of(json, "vision_config", file), file + ": vision_config"),
          .projection_dim = reader.positive("projection_dim", 512),
          .eos_token_id = text_reader.integer("eos_token_id", 49407, most_tokens)};
}

CLIPModelImpl::CLIPModelImpl(const CLIPModelConfig& c)
    : config_(c),
      text_embeddings(c.text),
      text_layers(nn::make_list<ClipLayer>()),
      vision_layers(nn::make_list<ClipLayer>()),
      final_layer_norm(c.text.hidden_size, c.text.layer_norm_eps),
      pre_layrnorm(c.vision.hidden_size, c.vision.layer_norm_eps),
      post_layernorm(c.vision.hidden_size, c.vision.layer_norm_eps),
      position_embedding(c.vision.patches() + 1, c.vision.hidden_size),
      text_projection(c.text.hidden_size, c.projection_dim, /*with_bias=*/false),
      visual_projection(c.vision.hidden_size, c.projection_dim, /*with_bias=*/false) {
  const auto text = make_branch(*this, "text_model");
  text->register_module("embeddings", text_embeddings);
  make_branch(*text, "encoder")->register_module("layers", text_layers);
  text->register_module("final_layer_norm", final_layer_norm);
  const auto vision = make_branch(*this, "vision_model");
  const auto embeddings = make_branch(*vision, "embeddings");
  class_embedding_ = embeddings->register_parameter("class_embedding", torch::empty({c.vision.hidden_size}));
  patch_embedding_ = make_branch(*embeddings, "patch_embedding")
                         ->register_parameter("weight", torch::empty({c.vision.hidden_size, c.vision.num_channels,
                                                                      c.vision.patch_size, c.vision.patch_size}));
  embeddings->register_module("position_embedding", position_embedding);
  vision->register_module("pre_layrnorm", pre_layrnorm);
  make_branch(*vision, "encoder")->register_module("layers", vision_layers);
  vision->register_module("post_layernorm", post_layernorm);
  register_module("text_projection", text_projection);
  register_module("visual_projection", visual_projection);
  logit_scale_ = register_parameter("logit_scale", torch::empty({}));
  for (std::int64_t i = 0; i < c.text.num_hidden_layers; ++i) text_layers->add(ClipLayer(c.text));
  for (std::int64_t i = 0; i < c.vision.num_hidden_layers; ++i) vision_layers->add(ClipLayer(c.vision));
}

torch::Tensor CLIPModelImpl::image_features(const torch::Tensor& pixels) {
  const auto patches = at::conv2d(pixels, patch_embedding_, {}, config_.vision.patch_size).flatten(2).transpose(1, 2);
  const auto first = class_embedding_.expand({pixels.size(0), 1, -1});
  auto hidden = pre_layrnorm(torch::cat({first, patches}, 1) + position_embedding->weight);
  for (auto& layer : *vision_layers) hidden = layer(hidden);
  return visual_projection(post_layernorm(hidden.select(1, 0)));
}

torch::Tensor CLIPModelImpl::text_features(const torch::Tensor& ids) {
  auto hidden = text_embeddings(ids);
  for (auto& layer : *text_layers) hidden = layer(hidden);
  const auto rows = torch::arange(ids.size(0), torch::TensorOptions(torch::kInt64).device(ids.device()));
  return text_projection(final_layer_norm(hidden).index({rows, end_places(ids, config_.eos_token_id)}));
}

CLIPModel load_clip_model(const std::filesystem::path& folder, torch::Device device) {
  const auto file = folder / "config.json";
  CLIPModel model(CLIPModelConfig::from_json(read_json_object(file), file.string()));
  nn::place(*model, device, torch::kFloat32);
  load_weights(*model, folder, transformers_stem);
  model->eval();
  return model;
}

}  // namespace millrace
