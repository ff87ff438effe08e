#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "millrace/dataset/data_config.h"

// What `inspect` tells of each kind of file, as one JSON object with "kind" and "problems" (docs/operations.md).
namespace millrace {

struct InspectOptions {
  std::optional<std::string> pipeline;        // counts captions in its tokens, and decodes latents
  std::optional<std::filesystem::path> grid;  // PNG of the first images
  SourceConfig source = {};                   // how training would read archives and tables
};

nlohmann::json inspect_archive(const std::filesystem::path& path, const InspectOptions& options);
nlohmann::json inspect_parquet(const std::filesystem::path& path, const InspectOptions& options);
nlohmann::json inspect_list(const std::filesystem::path& path);
nlohmann::json inspect_cache(const std::filesystem::path& path, const InspectOptions& options);
nlohmann::json inspect_checkpoint(const std::filesystem::path& path);
nlohmann::json inspect_run(const std::filesystem::path& path);
nlohmann::json inspect_safetensors(const std::filesystem::path& path);

}  // namespace millrace
