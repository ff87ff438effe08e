#include "run/trained_run.h"

#include <fmt/format.h>

#include <string>
#include <system_error>

#include "millrace/config/config.h"
#include "millrace/core/error.h"
#include "millrace/core/run_files.h"
#include "millrace/core/storage_error.h"

namespace millrace {

TrainConfig trained_config(const nlohmann::json& manifest, const std::filesystem::path& checkpoint) {
  TrainConfig config;
  config::load_text(config, manifest.at("config").get<std::string>(), (checkpoint / run_file::manifest).string())
      .throw_if_problems();
  return config;
}

TrainConfig trained_config(const CheckpointReader& checkpoint) {
  return trained_config(checkpoint.manifest(), checkpoint.path());
}

bool is_of_vae(const nlohmann::json& manifest) {
  return manifest.at("kind") == "vae";
}

bool is_of_vae(const CheckpointReader& checkpoint) {
  return is_of_vae(checkpoint.manifest());
}

PipelineFolder pipeline_of(const nlohmann::json& manifest, const std::filesystem::path& checkpoint,
                           const std::optional<std::string>& moved) {
  if (moved) return PipelineFolder::open(*moved);
  const auto path = manifest.at("pipeline").get<std::string>();
  std::error_code error;
  const bool is_there = std::filesystem::is_directory(path, error);
  check_storage(error, path);
  if (!is_there)
    throw Error(Exit::io,
                fmt::format("{} was trained with model.pipeline={}, which is no folder now", checkpoint.string(), path),
                "if it was moved, say where it is: model.pipeline=FOLDER");
  return PipelineFolder::open(path);
}

PipelineFolder pipeline_of(const CheckpointReader& checkpoint, const std::optional<std::string>& moved) {
  return pipeline_of(checkpoint.manifest(), checkpoint.path(), moved);
}

}  // namespace millrace
