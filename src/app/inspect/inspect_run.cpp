// Checkpoints, runs and files of tensors.
#include "inspect/inspect.h"
#include "millrace/checkpoint/manifest.h"
#include "millrace/checkpoint/reader.h"
#include "millrace/checkpoint/run_state.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/run_files.h"
#include "millrace/io/safetensors.h"

namespace millrace {

using nlohmann::json;
namespace stdfs = std::filesystem;

// What it says of itself, whether or not its files are as it says.
static void add_manifest(json& report, const stdfs::path& path) try {
  const auto manifest = CheckpointManifest::parse(CheckpointManifest::read(path), path);
  const auto state = RunState::from_json(manifest.json.at("state"));
  report["step"] = state.step;
  report["samples"] = state.samples;
  report["skipped"] = state.skipped;
  report["tensors"] = manifest.tensors.size();
  report["files"] = manifest.json.at("files");
  std::uint64_t bytes = 0;
  for (const auto& file : manifest.files) bytes += file.bytes;
  report["bytes"] = bytes;
  report["of"] = manifest.json.value("kind", "");
  report["ema"] = manifest.has("ema");
} catch (const json::exception& error) {
  fail(Exit::io, "{}: MANIFEST.json: {}", path.string(), error.what());
}

json inspect_checkpoint(const stdfs::path& path) {
  json report = {{"kind", "checkpoint"}, {"valid", false}, {"problems", json::array()}};
  if (const auto step = step_of_name(without_last_slash(path).filename().string())) report["step"] = *step;
  try {
    add_manifest(report, path);
    (void)CheckpointReader::open(path);
    report["valid"] = true;
  } catch (const std::exception& error) {
    report["problems"].push_back(error.what());
  }
  return report;
}

// Of a run that saves nothing.
static void add_place_of_unsaved(json& report, const stdfs::path& state_file) {
  if (!stdfs::exists(state_file)) return;
  const auto state = json::parse(read_file(state_file), nullptr, /*allow_exceptions=*/false);
  if (!state.is_object()) return;
  for (const char* key : {"step", "samples"})
    if (state.contains(key) && state[key].is_number_integer()) report[key] = state[key];
}

json inspect_run(const stdfs::path& path) {
  json report = {{"kind", "run"},
                 {"step", 0},
                 {"samples", 0},
                 {"done", stdfs::exists(path / run_file::done)},
                 {"checkpoints", json::array()},
                 {"problems", json::array()}};
  for (const auto& name : list_checkpoints(path)) {
    auto entry = inspect_checkpoint(name.path);
    if (!entry["valid"] && !stdfs::exists(name.path)) continue;  // retention has removed it meanwhile
    entry["path"] = name.path.string();
    if (entry["valid"] && report["step"] == 0) report["step"] = entry["step"], report["samples"] = entry["samples"];
    for (const auto& problem : entry["problems"]) report["problems"].push_back(problem);
    report["checkpoints"].push_back(std::move(entry));
  }
  if (report["checkpoints"].empty()) add_place_of_unsaved(report, path / run_file::state);
  return report;
}

json inspect_safetensors(const stdfs::path& path) {
  json report = {{"kind", "safetensors"},
                 {"bytes", stdfs::file_size(path)},
                 {"tensors", json::object()},
                 {"problems", json::array()}};
  const SafetensorsFile file(path);
  for (const auto& info : file.tensors())
    report["tensors"][info.name] = {{"dtype", to_string(info.dtype)}, {"shape", info.shape}};
  report["metadata"] = file.metadata();
  return report;
}

}  // namespace millrace
