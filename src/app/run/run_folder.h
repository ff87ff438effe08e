#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "millrace/comm/agree.h"
#include "millrace/config/config.h"
#include "millrace/dataset/manifest.h"
#include "millrace/loader/data_plan.h"
#include "millrace/train/loop.h"

// The files of a run that are neither tensors nor metrics, and what a restart checks first.
namespace millrace {

// Opens run.dir for writing, which comes after everything was judged: a start that is refused, and a dry run, leave it
// as it is. Makes the folder, config.yaml (resolved) and archives.tsv (the manifest's listing). DONE stays until the
// first checkpoint of this start. Rank 0 of `world`; errors reach all.
void open_run_folder(const Group& world, const std::filesystem::path& run_dir, const std::string& config_yaml,
                     const Manifest& archives);

// What goes into every checkpoint of a run, so that a restart can tell whether it is still the same run. `kind` = unet
// or vae, `model` = its config.json.
nlohmann::json run_identity(const std::string& kind, const std::string& config_yaml, const DataPlan& data,
                            const nlohmann::json& model, const std::filesystem::path& pipeline);
template <class Config>
nlohmann::json run_identity(const std::string& kind, const Config& config, const DataPlan& data,
                            const nlohmann::json& model, const std::filesystem::path& pipeline) {
  return run_identity(kind, config::dump_yaml(config), data, model, pipeline);
}

// Where a run starts: nothing for step 0. `resume` is auto, never or a folder. Collective over `world`; Error(usage)
// for `never` on a run that holds checkpoints.
std::optional<std::filesystem::path> find_start(const Group& world, const std::filesystem::path& run_dir,
                                                const std::string& resume);

// The differences between the run that wrote a checkpoint and this one: all are logged; what a restart must keep (seed,
// batch.global, data, transform, tokenizer, model shape) is an Error(usage) unless allowed. What changed in the data is
// told from the archives.tsv of the run that the checkpoint belongs to.
void check_resume(const CheckpointReader& checkpoint, const std::vector<config::Change>& changes,
                  const nlohmann::json& identity, const Manifest& archives, bool allow_changes);

// The checkpoint to continue from, open and checked against this run; nothing for step 0. Collective over `world`.
template <class Config>
std::optional<CheckpointReader> open_start(const Group& world, const Config& config, const nlohmann::json& identity,
                                           const Manifest& archives) {
  const auto found = find_start(world, config.run.dir.value, config.checkpoint.resume);
  if (!found) return std::nullopt;
  return on_all(world, [&] {
    auto checkpoint = CheckpointReader::open(*found, /*verify=*/false);  // rank 0 has verified it
    check_resume(checkpoint, config::diff(checkpoint.manifest().value("config", ""), config), identity, archives,
                 config.checkpoint.allow_changes);
    return std::optional(std::move(checkpoint));
  });
}

// Where training resumes from a checkpoint. When the user insists on other data (checkpoint.allow_changes), the places
// in the old ones mean nothing: the new data begin at their beginning.
RunState start_from(const CheckpointReader& checkpoint, const nlohmann::json& identity);

// RUN/DONE and RUN/STATE (JSON), rank 0.
void write_state(const std::filesystem::path& run_dir, const std::string& word, const LoopResult& result);

// The last lines of a dry run, after the start-up table: nothing was written, and what the run `would` do.
void print_dry_run(const std::filesystem::path& run_dir, const std::string& would);

// What was reached, who waited for whom, and what to do next: `next_command` when the run is finished.
void print_footer(const std::filesystem::path& run_dir, const LoopResult& result, bool has_producers,
                  const std::string& next_command);

}  // namespace millrace
