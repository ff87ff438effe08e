#include "millrace/models/pipeline_export.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/io/json.h"
#include "millrace/io/weights.h"
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

// The source's where it has one; a folder of parts need not. A U-Net that was trained here makes a
// StableDiffusionPipeline, whatever the source is: SDXL has parts besides, which are not exported.
json exported_index(const PipelineFolder& source, const SchedulerConfig& scheduler, bool has_trained_unet) {
  json index = model_index(scheduler.class_name());
  for (const auto& [key, value] : source.index().items()) {
    const bool is_kept = !has_trained_unet || (index.contains(key) && key != "_class_name");
    const bool is_part = index.contains(key) && index[key].is_array();
    if (is_kept && (is_part ? is_listed(value) : !is_absent(value))) index[key] = value;
  }
  index.erase("_name_or_path");
  index["_diffusers_version"] = diffusers_format_version;
  index["scheduler"] = {"diffusers", scheduler.class_name()};
  for (const char* name : optional_components) {
    if (!source.has(name)) index[name] = {nullptr, nullptr};
  }
  if (source.has("feature_extractor")) {  // its old name is gone from transformers 5
    index["feature_extractor"] = {"transformers", "CLIPImageProcessor"};
  }
  if (!source.has("safety_checker")) index["requires_safety_checker"] = false;
  return index;
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

}  // namespace

std::optional<std::string> find_missing_part(const PipelineFolder& folder) {
  const auto missing = std::ranges::find_if_not(needed_components, [&](const char* name) { return folder.has(name); });
  return missing == needed_components.end() ? std::nullopt : std::optional<std::string>(*missing);
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
  StagedFolder staged(out);
  for (const char* name : pipeline_networks) {
    const auto replacement = pipeline.replacements.find(name);
    if (replacement == pipeline.replacements.end()) {
      refuse_non_finite_weights(source.component(name));
      copy_folder(source.component(name), staged.subfolder(name));
    } else {
      write_component(replacement->second, name, staged.subfolder(name));
    }
  }
  copy_folder(source.component("tokenizer"), staged.subfolder("tokenizer"));
  for (const char* name : optional_components) {
    if (source.has(name)) copy_folder(source.component(name), staged.subfolder(name));
  }
  if (pipeline.unet_sample_size) {
    const fs::path file = staged.path() / "unet" / "config.json";
    write_json(file, with_sample_size(read_json_object(file), *pipeline.unet_sample_size));
  }

  const SchedulerConfig scheduler = pipeline.scheduler ? *pipeline.scheduler : source.scheduler();
  json scheduler_json = scheduler.to_json();
  scheduler_json["_diffusers_version"] = diffusers_format_version;
  write_json(staged.subfolder("scheduler") / "scheduler_config.json", scheduler_json);
  write_json(staged.path() / "model_index.json",
             exported_index(source, scheduler, pipeline.replacements.contains("unet")));
  write_file_atomically(staged.path() / "README.md", model_card_text(pipeline.card));
  staged.publish();
}

}  // namespace millrace
