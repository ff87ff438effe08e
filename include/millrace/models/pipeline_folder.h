#pragma once
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "millrace/diffusion/scheduler_config.h"
#include "millrace/models/autoencoder_kl.h"
#include "millrace/models/clip_text.h"
#include "millrace/models/unet_2d_condition.h"
#include "millrace/models/weights.h"

// Stable Diffusion pipelines as diffusers keeps them: one folder per component and model_index.json on top.
namespace millrace {

// The diffusers version whose format we write, and were checked with. Loaders treat folders of versions below 0.9
// specially.
inline constexpr std::string_view diffusers_format_version = "0.42.1";

class PipelineFolder {
 public:
  // A pipeline, or the bare folder of one component (a config.json with weights). Error(io) when it is neither.
  static PipelineFolder open(const std::filesystem::path& path);

  bool has(std::string_view component) const { return components_.contains(component); }
  // The folder of a component ("unet", "vae", "text_encoder", "tokenizer", "scheduler"); Error(io) when it is not
  // there.
  const std::filesystem::path& component(std::string_view name) const;
  // Its config.json. Error(io) for a U-Net that paints from more than text, where the pipeline's class says so, too.
  nlohmann::json config(std::string_view component) const;
  SchedulerConfig scheduler() const;

  // The networks in evaluation mode. `variant` chooses weight files such as "fp16" or "non_ema".
  UNet2DConditionModel load_unet(torch::Device device, torch::Dtype dtype, std::string_view variant = "") const;
  AutoencoderKL load_vae(torch::Device device, torch::Dtype dtype, std::string_view variant = "") const;
  CLIPTextModel load_text_encoder(torch::Device device, torch::Dtype dtype, std::string_view variant = "") const;
  // The same with weights that somebody else is going to write.
  AutoencoderKL make_vae(torch::Device device, torch::Dtype dtype) const;
  CLIPTextModel make_text_encoder(torch::Device device, torch::Dtype dtype) const;

  const std::filesystem::path& path() const { return path_; }
  // model_index.json; null for a bare component folder.
  const nlohmann::json& index() const { return index_; }
  const std::map<std::string, std::filesystem::path, std::less<>>& components() const { return components_; }

 private:
  template <class Module, class Config>
  Module make(std::string_view name, torch::Device device, torch::Dtype dtype) const;
  template <class Module, class Config>
  Module load(std::string_view name, std::string_view variant, torch::Device device, torch::Dtype dtype) const;

  std::filesystem::path path_;
  nlohmann::json index_;
  std::map<std::string, std::filesystem::path, std::less<>> components_;
};

// {"kind": "pipeline", "components": {NAME: {"class", "parameters", "dtype", "files", "variants"}}, "problems": [...]}.
// Reads the headers of all weight files, not the weights.
nlohmann::json inspect_pipeline(const std::filesystem::path& path);

}  // namespace millrace
