#include "millrace/models/pipeline_folder.h"

#include <array>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/run_files.h"
#include "millrace/io/json.h"
#include "millrace/nn/layers.h"
#include "staged_folder.h"

namespace millrace {

namespace {

using nlohmann::json;

constexpr std::array known_components = {"feature_extractor", "image_encoder", "safety_checker", "scheduler",
                                         "text_encoder",      "tokenizer",     "unet",           "vae"};

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Which component a bare folder holds, by the class that its config.json or scheduler_config.json names.
std::string component_of_bare_folder(const fs::path& path) {
  if (fs::exists(path / "scheduler_config.json")) return "scheduler";
  if (fs::exists(path / "vocab.json") || fs::exists(path / "tokenizer.json")) return "tokenizer";
  if (!fs::exists(path / "config.json")) return "";
  const json config = read_json_object(path / "config.json");
  const std::string class_name = text_of(config, "_class_name");
  if (class_name == "UNet2DConditionModel") return "unet";
  if (class_name == "AutoencoderKL") return "vae";
  return text_of(config, "model_type") == "clip_text_model" ? "text_encoder" : "";
}

// A component whose entry in model_index.json is [null, null] is absent even where its folder lies there.
bool is_listed(const json& index, const char* name) {
  const auto entry = index.find(name);
  return entry != index.end() && entry->is_array() && entry->size() == 2 && entry->at(1).is_string();
}

}  // namespace

PipelineFolder PipelineFolder::open(const fs::path& path) {
  PipelineFolder pipeline;
  pipeline.path_ = path;
  if (fs::exists(path / "model_index.json")) {
    pipeline.index_ = read_json_object(path / "model_index.json");
    for (const char* name : known_components) {
      if (is_listed(pipeline.index_, name) && fs::is_directory(path / name)) pipeline.components_[name] = path / name;
    }
    return pipeline;
  }
  if (!fs::is_directory(path))
    throw Error(Exit::io, fmt::format("{} is not a folder", path.string()),
                "a model of the Hub has to be there already: `hf download NAME --local-dir FOLDER`");
  for (const char* name : known_components) {  // parts of a pipeline, without the index that would name them all
    if (fs::is_directory(path / name) && component_of_bare_folder(path / name) == name)
      pipeline.components_[name] = path / name;
  }
  if (!pipeline.components_.empty()) return pipeline;
  const std::string component = component_of_bare_folder(path);
  if (component.empty()) {
    throw Error(Exit::io, fmt::format("{} holds no Stable Diffusion pipeline: no model_index.json", path.string()),
                fs::exists(checkpoints_in(path))
                    ? "a run: `millrace export --run RUN --out FOLDER` makes a pipeline of it"
                    : "give a folder in diffusers' layout; `millrace init --preset tiny --out DIR` makes one");
  }
  pipeline.components_[component] = path;
  return pipeline;
}

const fs::path& PipelineFolder::component(std::string_view name) const {
  const auto found = components_.find(name);
  if (found == components_.end()) fail(Exit::io, "{} has no {}", path_.string(), name);
  return found->second;
}

json PipelineFolder::config(std::string_view name) const {
  return read_json_object(component(name) / "config.json");
}

SchedulerConfig PipelineFolder::scheduler() const {
  const fs::path file = component("scheduler") / "scheduler_config.json";
  return SchedulerConfig::from_text(read_file(file), file.string());
}

template <class Module, class Config>
Module PipelineFolder::load(std::string_view name, std::string_view stem, std::string_view variant,
                            torch::Device device, torch::Dtype dtype) const {
  const fs::path& folder = component(name);
  Module module(Config::from_json(config(name), (folder / "config.json").string()));
  nn::place(*module, device, dtype);
  load_weights(*module, folder, stem, variant);
  module->eval();
  return module;
}

UNet2DConditionModel PipelineFolder::load_unet(torch::Device device, torch::Dtype dtype,
                                               std::string_view variant) const {
  return load<UNet2DConditionModel, UNet2DConditionConfig>("unet", diffusers_stem, variant, device, dtype);
}

AutoencoderKL PipelineFolder::load_vae(torch::Device device, torch::Dtype dtype, std::string_view variant) const {
  return load<AutoencoderKL, AutoencoderKLConfig>("vae", diffusers_stem, variant, device, dtype);
}

CLIPTextModel PipelineFolder::load_text_encoder(torch::Device device, torch::Dtype dtype,
                                                std::string_view variant) const {
  return load<CLIPTextModel, CLIPTextConfig>("text_encoder", transformers_stem, variant, device, dtype);
}

}  // namespace millrace
