#include "millrace/models/presets.h"

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/models/initialize.h"
#include "millrace/models/pipeline_folder.h"
#include "staged_folder.h"

namespace millrace {

namespace {

using nlohmann::json;

void write_component(const torch::nn::Module& module, const json& config, const fs::path& folder,
                     std::string_view stem) {
  write_json(folder / "config.json", config);
  save_weights(tensors_of(module), folder, stem);
}

json model_index(const json& scheduler) {
  const json none = {nullptr, nullptr};
  return {
      {"_class_name", "StableDiffusionPipeline"},
      {"_diffusers_version", diffusers_format_version},
      {"feature_extractor", none},
      {"image_encoder", none},
      {"requires_safety_checker", false},
      {"safety_checker", none},
      {"scheduler", json::array({"diffusers", scheduler.at("_class_name")})},
      {"text_encoder", json::array({"transformers", "CLIPTextModel"})},
      {"tokenizer", json::array({"transformers", "CLIPTokenizer"})},
      {"unet", json::array({"diffusers", "UNet2DConditionModel"})},
      {"vae", json::array({"diffusers", "AutoencoderKL"})},
  };
}

}  // namespace

void init_pipeline(Preset preset, const fs::path& tokenizer_folder, const fs::path& out, std::uint64_t seed) {
  const PresetConfigs configs = preset_configs(preset);
  StagedFolder staged(out);
  copy_folder(tokenizer_folder, staged.subfolder("tokenizer"));
  write_json(staged.subfolder("scheduler") / "scheduler_config.json", configs.scheduler);
  write_json(staged.path() / "model_index.json", model_index(configs.scheduler));
  write_component(*make_text_encoder(configs.text_encoder, seed, configs.token_embedding_std), configs.text_encoder,
                  staged.subfolder("text_encoder"), transformers_stem);
  write_component(*make_vae(configs.vae, seed), configs.vae, staged.subfolder("vae"), diffusers_stem);
  write_component(*make_unet(configs.unet, seed), configs.unet, staged.subfolder("unet"), diffusers_stem);
  staged.publish();
}

}  // namespace millrace
