#pragma once
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

namespace millrace {

// What a pipeline consists of: networks, what else every one has, and what one may have besides.
inline constexpr std::array pipeline_components = {
    "unet", "vae", "text_encoder", "tokenizer", "scheduler", "feature_extractor", "image_encoder", "safety_checker"};
inline constexpr auto pipeline_networks = std::span(pipeline_components).first<3>();
inline constexpr auto needed_components = std::span(pipeline_components).first<5>();
inline constexpr auto optional_components = std::span(pipeline_components).last<3>();

// Of model_index.json's entry of a component: [library, class], or [null, null] where the pipeline does without it; one
// of the two alone names no class either. Other settings are neither.
bool is_listed(const nlohmann::json& entry);
bool is_absent(const nlohmann::json& entry);

// model_index.json of a Stable Diffusion pipeline of the five parts that every one has.
nlohmann::json model_index(const std::string& scheduler_class);

}  // namespace millrace
