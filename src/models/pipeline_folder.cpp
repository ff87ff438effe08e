#include "millrace/models/pipeline_folder.h"

#include <algorithm>
#include <array>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/run_files.h"
#include "millrace/io/json.h"
#include "millrace/models/clip_text.h"
#include "millrace/nn/layers.h"
#include "model_index.h"

namespace millrace {

namespace {

using nlohmann::json;

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Which network a bare folder holds, by the class that its config.json names.
std::string network_of_bare_folder(const fs::path& path) {
  if (!fs::exists(path / "config.json")) return "";
  const json config = read_json_object(path / "config.json");
  const std::string class_name = text_of(config, "_class_name");
  if (class_name == "UNet2DConditionModel") return "unet";
  if (class_name == "AutoencoderKL") return "vae";
  return CLIPTextConfig::knows_model_type(text_of(config, "model_type")) ? "text_encoder" : "";
}

bool holds_weights(const fs::path& path) {
  const fs::directory_iterator files(path);
  return std::any_of(begin(files), end(files),
                     [](const auto& file) { return file.path().extension() == ".safetensors"; });
}

// Which components a bare folder holds: one, but that transformers saves models and their tokenizers together. A
// config.json without weights tells of the model that the tokenizer belongs to.
std::vector<std::string> components_of_bare_folder(const fs::path& path) {
  if (fs::exists(path / "scheduler_config.json")) return {"scheduler"};
  std::vector<std::string> components;
  if (fs::exists(path / "vocab.json") || fs::exists(path / "tokenizer.json")) components.emplace_back("tokenizer");
  const std::string network = network_of_bare_folder(path);
  if (!network.empty() && (components.empty() || holds_weights(path))) components.push_back(network);
  return components;
}

// What the class names of other pipelines hold whose U-Net, if they have one, mostly takes more than noisy latents and
// the states of one text encoder. Their VAEs and text encoders may serve all the same.
constexpr std::array other_pipelines = {"XL",      "StableDiffusion3", "Flux",   "Inpaint",  "Pix2Pix",
                                        "Upscale", "Depth2Img",        "UnCLIP", "Kandinsky"};

void refuse_other_pipelines(const fs::path& path, const json& index) {
  const std::string class_name = text_of(index, "_class_name");
  if (std::ranges::none_of(other_pipelines, [&](const char* part) { return class_name.find(part) != class_name.npos; }))
    return;
  throw Error(Exit::io,
              fmt::format("{} is a {}: the U-Nets built here are those of Stable Diffusion 1 and 2, which paint from "
                          "text alone",
                          path.string(), class_name),
              "a folder of StableDiffusionPipeline has them");
}

// All of a model, as the first Stable Diffusion's authors and other programs save it; not weights of one component.
bool is_single_file(const fs::path& file) {
  const std::string name = file.filename().string();
  if (name.ends_with(".ckpt")) return true;
  return name.ends_with(".safetensors") && name.find("-of-") == name.npos && !name.starts_with(diffusers_stem);
}

// model.safetensors may be either: beside others it is taken for a text encoder's.
bool is_of_text_encoder(const fs::path& file) {
  const std::string name = file.filename().string();
  return name.ends_with(".safetensors") && name.starts_with(fmt::format("{}.", transformers_stem));
}

// `path` itself, or the first in the folder `path`; empty where there is none.
fs::path find_single_file(const fs::path& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) return is_single_file(path) ? path : fs::path();
  fs::path first;
  for (const auto& entry : list_folder(path, error))
    if (is_single_file(entry.path()) && !is_of_text_encoder(entry.path()) && (first.empty() || entry.path() < first))
      first = entry.path();
  return first;
}

// The file's name is not in the command: it may be anybody's, and a shell would read it.
std::string how_to_unpack(const fs::path& single_file) {
  return fmt::format(
      "diffusers makes a folder of a single file such as {}: python -c \"from diffusers import "
      "StableDiffusionPipeline as P; P.from_single_file('FILE').save_pretrained('FOLDER')\"; for Stable Diffusion 2 "
      "from_single_file needs config='NAME', a folder or repository of that version{}",
      single_file.string(),
      single_file.extension() == ".ckpt" ? "; of a .ckpt that it cannot load, take the .safetensors twin" : "");
}

[[noreturn]] void refuse_no_folder(const fs::path& path) {
  const fs::path single_file = find_single_file(path);
  throw Error(Exit::io, fmt::format("{} is not a folder", path.string()),
              !single_file.empty()
                  ? how_to_unpack(single_file)
                  : "a model of the Hub has to be there already: python -c \"from huggingface_hub import "
                    "snapshot_download as get; get('NAME', local_dir='FOLDER', allow_patterns=['*.json', '*.txt', "
                    "'*/*.safetensors'], ignore_patterns=['*fp16*', '*non_ema*'])\"");
}

[[noreturn]] void refuse_no_pipeline(const fs::path& path) {
  const fs::path single_file = find_single_file(path);
  throw Error(Exit::io, fmt::format("{} holds no Stable Diffusion pipeline: no model_index.json", path.string()),
              fs::exists(checkpoints_in(path))
                  ? "a run: `millrace export --run RUN --out FOLDER` makes a pipeline of it"
              : !single_file.empty() ? how_to_unpack(single_file)
                                     : "give a folder in diffusers' layout; `millrace init --preset tiny "
                                       "--out DIR` makes one");
}

}  // namespace

PipelineFolder PipelineFolder::open(const fs::path& path) {
  PipelineFolder pipeline;
  pipeline.path_ = path;
  if (fs::exists(path / "model_index.json")) {
    pipeline.index_ = read_json_object(path / "model_index.json");
    for (const char* name : pipeline_components) {  // one that is not listed is absent also where its folder lies there
      const bool is_here = is_listed(pipeline.index_.value(name, json())) && fs::is_directory(path / name);
      if (is_here) pipeline.components_[name] = path / name;
    }
    return pipeline;
  }
  if (!fs::is_directory(path)) refuse_no_folder(path);
  for (const char* name : pipeline_components) {  // parts of a pipeline, without the index that would name them all
    if (fs::is_directory(path / name) && std::ranges::count(components_of_bare_folder(path / name), name) > 0)
      pipeline.components_[name] = path / name;
  }
  if (!pipeline.components_.empty()) return pipeline;
  for (const std::string& component : components_of_bare_folder(path)) pipeline.components_[component] = path;
  if (pipeline.components_.empty()) refuse_no_pipeline(path);
  return pipeline;
}

const fs::path& PipelineFolder::component(std::string_view name) const {
  const auto found = components_.find(name);
  if (found != components_.end()) return found->second;
  const bool is_bare = !components_.empty() && components_.begin()->second == path_;
  throw Error(
      Exit::io, fmt::format("{} has no part {}", path_.string(), name),
      is_bare ? "it is one part of a pipeline: give the folder above"
              : "a pipeline of Stable Diffusion 1 or 2 has unet, vae, text_encoder, tokenizer and scheduler: link the "
                "missing one from the folder that the model was made from, and list it in model_index.json where there "
                "is one");
}

json PipelineFolder::config(std::string_view name) const {
  if (name == "unet" && !has(name)) refuse_other_pipelines(path_, index_);
  json source = read_json_object(component(name) / "config.json");
  if (name == "unet" && takes_more_than_text(source)) refuse_other_pipelines(path_, index_);
  return source;
}

SchedulerConfig PipelineFolder::scheduler() const {
  const fs::path file = component("scheduler") / "scheduler_config.json";
  return SchedulerConfig::from_text(read_file(file), file.string());
}

template <class Module, class Config>
Module PipelineFolder::make(std::string_view name, torch::Device device, torch::Dtype dtype) const {
  const json source = config(name);
  Module module(Config::from_json(source, (component(name) / "config.json").string()));
  nn::place(*module, device, dtype);
  module->eval();
  return module;
}

template <class Module, class Config>
Module PipelineFolder::load(std::string_view name, std::string_view variant, torch::Device device,
                            torch::Dtype dtype) const {
  auto module = make<Module, Config>(name, device, dtype);
  load_weights(*module, component(name), weights_stem(name), variant);
  return module;
}

UNet2DConditionModel PipelineFolder::load_unet(torch::Device device, torch::Dtype dtype,
                                               std::string_view variant) const {
  return load<UNet2DConditionModel, UNet2DConditionConfig>("unet", variant, device, dtype);
}

AutoencoderKL PipelineFolder::load_vae(torch::Device device, torch::Dtype dtype, std::string_view variant) const {
  return load<AutoencoderKL, AutoencoderKLConfig>("vae", variant, device, dtype);
}

CLIPTextModel PipelineFolder::load_text_encoder(torch::Device device, torch::Dtype dtype,
                                                std::string_view variant) const {
  return load<CLIPTextModel, CLIPTextConfig>("text_encoder", variant, device, dtype);
}

AutoencoderKL PipelineFolder::make_vae(torch::Device device, torch::Dtype dtype) const {
  return make<AutoencoderKL, AutoencoderKLConfig>("vae", device, dtype);
}

CLIPTextModel PipelineFolder::make_text_encoder(torch::Device device, torch::Dtype dtype) const {
  return make<CLIPTextModel, CLIPTextConfig>("text_encoder", device, dtype);
}

}  // namespace millrace
