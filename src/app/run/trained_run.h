#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "app_config.h"
#include "millrace/checkpoint/reader.h"
#include "millrace/models/pipeline_folder.h"

// What a checkpoint tells of the run that wrote it.
namespace millrace {

// The configuration that a checkpoint's run was started with.
TrainConfig trained_config(const CheckpointReader& checkpoint);
// The same of its manifest; `checkpoint` for messages.
TrainConfig trained_config(const nlohmann::json& manifest, const std::filesystem::path& checkpoint);

// Whether it trained a VAE and not a U-Net.
bool is_of_vae(const nlohmann::json& manifest);
bool is_of_vae(const CheckpointReader& checkpoint);
// The folder that it began with, or the one that it has become; Error(io) when it is missing.
PipelineFolder pipeline_of(const CheckpointReader& checkpoint, const std::optional<std::string>& moved = {});
// The same of its manifest; `checkpoint` for messages.
PipelineFolder pipeline_of(const nlohmann::json& manifest, const std::filesystem::path& checkpoint,
                           const std::optional<std::string>& moved);

}  // namespace millrace
