#include "model_index.h"

#include <algorithm>

#include "millrace/models/pipeline_folder.h"

namespace millrace {

using nlohmann::json;

bool is_listed(const json& entry) {
  return entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string();
}

bool is_absent(const json& entry) {
  const auto is_name = [](const json& part) { return part.is_string() || part.is_null(); };
  return entry.is_array() && entry.size() == 2 && std::ranges::all_of(entry, is_name) && !is_listed(entry);
}

json model_index(const std::string& scheduler_class) {
  const json none = {nullptr, nullptr};
  return {
      {"_class_name", "StableDiffusionPipeline"},
      {"_diffusers_version", diffusers_format_version},
      {"feature_extractor", none},
      {"image_encoder", none},
      {"requires_safety_checker", false},
      {"safety_checker", none},
      {"scheduler", json::array({"diffusers", scheduler_class})},
      {"text_encoder", json::array({"transformers", "CLIPTextModel"})},
      {"tokenizer", json::array({"transformers", "CLIPTokenizer"})},
      {"unet", json::array({"diffusers", "UNet2DConditionModel"})},
      {"vae", json::array({"diffusers", "AutoencoderKL"})},
  };
}

}  // namespace millrace
