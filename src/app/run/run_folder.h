#pragma once
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "millrace/checkpoint/reader.h"
#include "millrace/checkpoint/run_lease.h"
#include "millrace/comm/agree.h"
#include "millrace/config/config.h"
#include "millrace/dataset/manifest.h"
#include "millrace/loader/data_plan.h"
#include "millrace/train/loop.h"
#include "run/session.h"

// The files of a run that are neither tensors nor metrics, and what a restart checks first.
namespace millrace {

// Opens run.dir for writing, which comes after everything was judged: a start that is refused, and a dry run, leave it
// as it is. Makes the folder and takes its lease; config.yaml (resolved), archives.tsv (the manifest's listing), STATE;
// fault files of an earlier start go. DONE stays until the first checkpoint of this start. `start`, `checkpoint`: where
// the run resumes, by checkpoint.resume. Collective; errors reach all.
RunLease open_run_folder(const Group& world, const std::filesystem::path& run_dir, const std::string& config_yaml,
                         const Manifest& archives, const RunState& start, const std::string& resume,
                         const std::optional<CheckpointReader>& checkpoint);

// Runs a rank's part of a run whose folder is open. What it throws is written to RUN/fault, and to STATE where it ends
// the run, before the stack unwinds further.
// A rank that stands still for `hang_seconds` is named there too, and ends the run.
int run_in_folder(const Session& session, const std::filesystem::path& run_dir, const RunLease& lease,
                  const std::string& role, double hang_seconds, const std::function<int()>& part);

// The end of a trainer's part: STATE, DONE and the footer by rank 0, then what ended the run is thrown on all trainers.
// Returns the exit code.
int finish_run(const Group& trainers, const std::filesystem::path& run_dir, const RunLease& lease,
               const LoopResult& result, bool has_producers, const std::string& next_command);

// What goes into every checkpoint of a run, so that a restart can tell whether it is still the same run. `kind` = unet
// or vae, `model` = its config.json.
nlohmann::json run_identity(const std::string& kind, const std::string& config_yaml, const DataPlan& data,
                            const nlohmann::json& model, const std::filesystem::path& pipeline);
template <class Config>
nlohmann::json run_identity(const std::string& kind, const Config& config, const DataPlan& data,
                            const nlohmann::json& model, const std::filesystem::path& pipeline) {
  return run_identity(kind, config::dump_yaml(config), data, model, pipeline);
}

// The checkpoint that a run starts from, verified; nothing for step 0. `resume` is auto, never or a folder. Collective
// over `world`; Error(usage) for `never` on a run that holds checkpoints.
std::optional<CheckpointReader> find_start(const Group& world, const std::filesystem::path& run_dir,
                                           const std::string& resume);

// The differences between the run that wrote a checkpoint and this one: all are logged; what a restart must keep (seed,
// batch.global, data, transform, tokenizer, model shape) is an Error(usage) unless allowed. What changed in the data is
// told from the archives.tsv of the run that the checkpoint belongs to.
void check_resume(const CheckpointReader& checkpoint, const std::vector<config::Change>& changes,
                  const nlohmann::json& identity, const Manifest& archives, bool allow_changes);

// The checkpoint to continue from, verified and checked against this run; nothing for step 0. Collective over `world`.
template <class Config>
std::optional<CheckpointReader> open_start(const Group& world, const Config& config, const nlohmann::json& identity,
                                           const Manifest& archives) {
  auto checkpoint = find_start(world, config.run.dir.value, config.checkpoint.resume);
  if (checkpoint)
    on_root(world, [&] {
      check_resume(*checkpoint, config::diff(checkpoint->manifest().value("config", ""), config), identity, archives,
                   config.checkpoint.allow_changes);
    });
  return checkpoint;
}

// Its folder, for STATE.
std::optional<std::string> path_of(const std::optional<CheckpointReader>& checkpoint);

// Where training resumes from a checkpoint. When the user insists on other data (checkpoint.allow_changes), the places
// in the old ones mean nothing: the new data begin at their beginning.
RunState start_from(const CheckpointReader& checkpoint, const nlohmann::json& identity);

// The same with the ledger of the checkpoint, on rank 0 of the trainers, where it is kept. Collective over them.
RunState with_ledger(RunState start, const std::optional<CheckpointReader>& checkpoint, const Group& trainers);

// Bytes of a checkpoint of this model: weights, moments and, where it is kept, EMA in float32.
std::uint64_t checkpoint_bytes(const torch::nn::Module& model, bool ema);
// Error(io) when the disk of run.dir has no room for one checkpoint more; a warning when it has none for `keep` of them
// and the one that is being written.
void check_disk_space(const std::filesystem::path& run_dir, std::uint64_t checkpoint_bytes, int keep);

// The last lines of a dry run, after the start-up table: nothing was written, and what the run `would` do.
void print_dry_run(const std::filesystem::path& run_dir, const std::string& would);

// What was reached, who waited for whom, and what to do next: `next_command` when the run is finished.
void print_footer(const std::filesystem::path& run_dir, const LoopResult& result, bool has_producers,
                  const std::string& next_command);

}  // namespace millrace
