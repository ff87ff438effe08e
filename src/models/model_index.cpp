#include "model_index.h"

#include "millrace/models/pipeline_folder.h"

namespace millrace {

nlohmann::json model_index(const std::string& scheduler_class) {
  using nlohmann::json;
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
