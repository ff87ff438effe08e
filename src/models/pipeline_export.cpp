#include "millrace/models/pipeline_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/io/json.h"
#include "millrace/io/weights.h"
#include "millrace/models/autoencoder_kl.h"
#include "model_index.h"
#include "staged_folder.h"

namespace millrace {

namespace {

using nlohmann::json;

void write_component(const NewComponent& component, std::string_view name, const fs::path& folder) {
  json config = component.config;
  if (config.contains("_class_name")) config["_diffusers_version"] = diffusers_format_version;
  config.erase("_name_or_path");
  write_json(folder / "config.json", config);
  for (const auto& [variant, tensors] : component.weights) {
    save_weights(tensors, folder, weights_stem(name), variant, component.dtype);
  }
}

// Where there is what transformers loads by default.
bool has_weights(const fs::path& folder) {
  constexpr std::array names = {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                "pytorch_model.bin.index.json"};
  return std::ranges::any_of(names, [&](const char* name) { return fs::exists(folder / name); });
}

// A folder in the source, and not elsewhere: the index is anybody's.
bool is_part_of(const fs::path& source, const std::string& name) {
  const bool is_plain = !name.empty() && name.find('/') == name.npos && name.front() != '.';
  return is_plain && fs::is_directory(source / name);
}

bool is_known_part(const std::string& name) {
  return std::ranges::find(pipeline_components, name) != pipeline_components.end();
}

// The parts that are copied as they are, beside networks and the tokenizer. A pipeline does not load with a safety
// checker that a download has left without weights, or without its feature extractor. A U-Net that was trained here
// makes a StableDiffusionPipeline, whatever the source is: what SDXL has besides belongs to its own U-Net.
std::vector<std::string> further_parts(const PipelineFolder& source, bool has_trained_unet) {
  std::vector<std::string> parts;
  for (const char* name : optional_components) {
    if (!source.has(name)) continue;
    const bool is_network = std::string_view(name) != "feature_extractor";
    const bool is_whole = !is_network || has_weights(source.component(name));
    const bool is_served = std::string_view(name) != "safety_checker" || source.has("feature_extractor");
    if (is_whole && is_served) {
      parts.emplace_back(name);
    } else {
      log::warning("{} is not exported: {}", source.component(name).string(),
                   is_whole ? "it has no feature_extractor beside it" : "it has no weights");
    }
  }
  if (has_trained_unet) return parts;
  for (const auto& [name, entry] : source.index().items())
    if (is_listed(entry) && !is_known_part(name) && is_part_of(source.path(), name)) parts.push_back(name);
  return parts;
}

// The source's where it has one; a folder of parts need not.
json exported_index(const PipelineFolder& source, const SchedulerConfig& scheduler, const PipelineExport& pipeline,
                    const std::vector<std::string>& further) {
  json index = model_index(scheduler.class_name());
  const bool has_trained_unet = pipeline.replacements.contains("unet");
  const auto is_exported = [&](const std::string& name) { return std::ranges::find(further, name) != further.end(); };
  for (const auto& [key, value] : source.index().items()) {
    const bool is_kept = !has_trained_unet || (index.contains(key) && key != "_class_name");
    const bool is_part = index.contains(key) && index[key].is_array();
    if (is_kept && !pipeline.replacements.contains(key) && (is_part ? is_listed(value) : !is_absent(value)))
      index[key] = is_listed(value) && !is_known_part(key) && !is_exported(key) ? json({nullptr, nullptr}) : value;
  }
  index.erase("_name_or_path");
  index["_diffusers_version"] = diffusers_format_version;
  index["scheduler"] = {"diffusers", scheduler.class_name()};
  for (const char* name : optional_components) {
    if (!is_exported(name)) index[name] = {nullptr, nullptr};
  }
  if (is_exported("feature_extractor")) {  // its old name is gone from transformers 5
    index["feature_extractor"] = {"transformers", "CLIPImageProcessor"};
  }
  if (!is_exported("safety_checker")) index["requires_safety_checker"] = false;
  return index;
}

// transformers makes a network of the type that its config.json names, else of that of its weights; diffusers makes its
// own float32, and a pipeline of two types computes nothing.
void load_as_float32(const fs::path& folder) {
  const auto file = folder / "config.json";
  if (!fs::exists(file)) return;
  const auto before = read_json_object(file);
  if (!before.contains("model_type")) return;  // none of transformers'
  auto config = before;
  for (const char* key : {"torch_dtype", "dtype"})
    if (config.contains(key)) config[key] = "float32";
  if (!config.contains("dtype")) config["torch_dtype"] = "float32";
  if (config != before) write_json(file, config);
}

std::string model_card_text(const ModelCard& card) {
  std::string text =
      "---\n"
      "license: other\n"
      "library_name: diffusers\n"
      "pipeline_tag: text-to-image\n"
      "tags:\n- stable-diffusion\n- text-to-image\n- millrace\n"
      "---\n";
  text += fmt::format(
      "# {}\n\nTrained with millrace. Before publishing, name the license above and describe the data.\n", card.title);
  if (card.facts.empty()) return text;
  text += "\n| | |\n|---|---|\n";
  for (const auto& [name, value] : card.facts) text += fmt::format("| {} | {} |\n", name, value);
  return text;
}

void check_parts(const PipelineFolder& source, const PipelineExport& pipeline) {
  for (const char* name : needed_components)
    if (!source.has(name) && !pipeline.replacements.contains(name))
      throw Error(Exit::io,
                  fmt::format("{} has no {}, which an export takes from there", pipeline.source.string(), name),
                  "put it into that folder, and export again");
}

// Other programs load all of an export, those here what they need of it. Weights are looked for as loaders do it: the
// plain files, whatever variants lie beside them.
void warn_of_missing_weights(const PipelineFolder& source, const PipelineExport& pipeline) {
  for (const char* name : pipeline_networks) {
    if (pipeline.replacements.contains(name)) continue;
    try {
      (void)open_weights(source.component(name), weights_stem(name));
    } catch (const Error& error) {
      log::warning("{}: diffusers will not load the exported folder without them", error.what());
    }
  }
}

json exported_vae(const PipelineFolder& source, const PipelineExport& pipeline) {
  const auto replacement = pipeline.replacements.find("vae");
  return replacement == pipeline.replacements.end() ? source.config("vae") : replacement->second.config;
}

}  // namespace

std::optional<std::string> find_missing_part(const PipelineFolder& folder) {
  const auto missing = std::ranges::find_if_not(needed_components, [&](const char* name) { return folder.has(name); });
  return missing == needed_components.end() ? std::nullopt : std::optional<std::string>(*missing);
}

std::optional<std::string> complaint_about_shift(const json& vae_config) {
  const auto shift = AutoencoderKLConfig::from_json(vae_config).shift_factor.value_or(0);
  if (shift == 0) return std::nullopt;
  return fmt::format(
      "the VAE's shift_factor is {}: a U-Net is trained here on shifted latents, and `millrace generate` shifts them "
      "back, but diffusers' StableDiffusionPipeline decodes latents / scaling_factor alone, so that its pictures of an "
      "export have other colours",
      shift);
}

// With an older version on it, diffusers would take a side below 64 for a mistake and make it 64.
json with_sample_size(json unet_config, std::int64_t side) {
  unet_config["sample_size"] = side;
  unet_config["_diffusers_version"] = diffusers_format_version;
  return unet_config;
}

void write_component_folder(const fs::path& out, std::string_view name, const NewComponent& component) {
  StagedFolder staged(out);
  write_component(component, name, staged.path());
  staged.publish();
}

void write_pipeline(const fs::path& out, const PipelineExport& pipeline) {
  const PipelineFolder source = PipelineFolder::open(pipeline.source);
  check_parts(source, pipeline);
  warn_of_missing_weights(source, pipeline);
  if (const auto complaint = complaint_about_shift(exported_vae(source, pipeline))) log::warning("{}", *complaint);
  StagedFolder staged(out);
  for (const char* name : pipeline_networks) {
    const auto replacement = pipeline.replacements.find(name);
    if (replacement == pipeline.replacements.end()) {
      refuse_non_finite_weights(source.component(name), is_copied);
      copy_folder(source.component(name), staged.subfolder(name));
    } else {
      write_component(replacement->second, name, staged.subfolder(name));
    }
  }
  load_as_float32(staged.subfolder("text_encoder"));
  copy_folder(source.component("tokenizer"), staged.subfolder("tokenizer"));
  const auto further = further_parts(source, pipeline.replacements.contains("unet"));
  for (const auto& name : further) {
    refuse_non_finite_weights(source.path() / name, is_copied);
    copy_folder(source.path() / name, staged.subfolder(name));
    load_as_float32(staged.subfolder(name));
  }
  if (pipeline.unet_sample_size) {
    const fs::path file = staged.path() / "unet" / "config.json";
    write_json(file, with_sample_size(read_json_object(file), *pipeline.unet_sample_size));
  }

  const SchedulerConfig scheduler = pipeline.scheduler ? *pipeline.scheduler : source.scheduler();
  json scheduler_json = scheduler.to_json();
  scheduler_json["_diffusers_version"] = diffusers_format_version;
  write_json(staged.subfolder("scheduler") / "scheduler_config.json", scheduler_json);
  write_json(staged.path() / "model_index.json", exported_index(source, scheduler, pipeline, further));
  write_file_atomically(staged.path() / "README.md", model_card_text(pipeline.card));
  staged.publish();
}

}  // namespace millrace
