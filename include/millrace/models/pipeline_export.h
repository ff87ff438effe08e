#pragma once
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/diffusion/scheduler_config.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/models/weights.h"

// From trained weights to a folder that every Stable Diffusion tool opens.
namespace millrace {

// README.md of the folder, which is what the hub shows.
struct ModelCard {
  std::string title;
  std::vector<std::pair<std::string, std::string>> facts;  // {"steps", "550000"}, {"base model", "..."}, ...
};

// New weights of one component.
struct NewComponent {
  nlohmann::json config;                   // config.json, usually that of the source
  std::map<std::string, Tensors> weights;  // variant -> tensors; "" is the plain file
  torch::Dtype dtype = torch::kFloat32;
};

struct PipelineExport {
  std::filesystem::path source;                      // a pipeline; what is replaced need not be there
  std::map<std::string, NewComponent> replacements;  // "unet", "vae"; all else is copied from the source
  std::optional<int> unet_sample_size;               // side of the latents, so the size of images made by default
  std::optional<SchedulerConfig> scheduler;          // none: the source's
  ModelCard card;
};

// A U-Net's config.json for latents of this side.
nlohmann::json with_sample_size(nlohmann::json unet_config, std::int64_t side);

// Writes the folder `out`, which must not exist or be empty (else Error(usage)); it appears only when it is complete,
// and loads as float32. Error(io) where a part is neither in the source nor replaced; a warning where a network that is
// copied has no weights that are loaded by default, and of optional parts that are left out since no pipeline loads
// with them.
void write_pipeline(const std::filesystem::path& out, const PipelineExport& pipeline);
// The same of one part alone, as `from_pretrained` of its class takes it.
void write_component_folder(const std::filesystem::path& out, std::string_view name, const NewComponent& component);

// Of a VAE (its config.json) whose latents are shifted, which diffusers' StableDiffusionPipeline does not know.
std::optional<std::string> complaint_about_shift(const nlohmann::json& vae_config);

// A part of every pipeline that is not in the folder; nothing where all are.
std::optional<std::string> find_missing_part(const PipelineFolder& folder);

}  // namespace millrace
