#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app_config.h"
#include "millrace/checkpoint/reader.h"
#include "millrace/comm/agree.h"
#include "millrace/config/config.h"
#include "millrace/dataset/manifest.h"
#include "millrace/loader/data_plan.h"
#include "run/identity.h"
#include "run/start.h"
#include "run/used_up.h"

// Where a run begins: at which checkpoint, and what may not have changed since that was written.
namespace millrace {

// The checkpoint that a run starts from, verified by the trainers; nothing for step 0. `resume` is auto, never or a
// folder. Collective over `world`; Error(usage) for `never` on a run that holds checkpoints.
std::optional<CheckpointReader> find_start(const Group& world, const std::filesystem::path& run_dir,
                                           const std::string& resume, const std::vector<int>& trainers);

// For a start that has found no checkpoint: Error(io) where STATE, or else DONE, names one. The folder may lie on a
// disk that is not mounted, and lines of the whole history would go.
void refuse_lost_checkpoints(const std::filesystem::path& run_dir);

// Of a learning rate that jumps: with the step after this point by more than a tenth away from what the settings
// `before` would give.
std::optional<std::string> complaint_about_rate(const TrainConfig& before, const TrainConfig& now,
                                                const RunPoint& point);

// The differences between the run that wrote a checkpoint and this one: all are logged; what a restart must keep (the
// settings in `fixed_keys`, the archives, the encoders) is an Error(usage) unless allowed. Files may have moved, and
// what is spelled in another way is no other setting. A network that does not have the checkpoint's tensors is never
// allowed. A learning rate that jumps is a warning. What changed in the data is told from the archives.tsv of the run
// that the checkpoint belongs to.
void check_resume(const CheckpointReader& checkpoint, const std::vector<config::Change>& changes,
                  const RunIdentity& identity, const Manifest& archives, bool allow_changes);

// How much of a checkpoint's cursors into the data still holds for a run, where checkpoint.allow_changes let it start:
// all; which rows were read, but not the order within the block in work; the epoch alone; nothing.
enum class KeptCursors { all, rows, epoch, none };
KeptCursors kept_cursors(const RunIdentity& before, const RunIdentity& now);
// Whether the steps behind a checkpoint get the samples that they had, or would have had, in the run that wrote it.
bool has_same_batches(const RunIdentity& before, const RunIdentity& now);

// Where training resumes from a checkpoint. What does not hold any more begins anew: samples come twice, none is lost.
RunState resume_state(const CheckpointReader& checkpoint, const RunIdentity& identity);

// By checkpoint.resume; a checkpoint is verified, and checked against this run. Collective over `world`.
template <class Config>
Start plan_start(const Group& world, const Config& config, const RunIdentity& identity, const Manifest& archives,
                 const std::vector<int>& trainers) {
  Start start{.identity = identity};
  on_root(world, [&] {
    if (const auto there = list_checkpoints(config.run.dir.value); !there.empty())
      start.newest_there = there.front().step;
  });
  start.checkpoint = find_start(world, config.run.dir.value, config.checkpoint.resume, trainers);
  if (!start.checkpoint) return start;
  const auto before = RunIdentity::from_manifest(start.checkpoint->manifest());
  on_root(world, [&] {
    const auto changes = config::diff(before.config_yaml, config);
    check_resume(*start.checkpoint, changes, identity, archives, config.checkpoint.allow_changes);
  });
  start.state = resume_state(*start.checkpoint, identity);
  if (has_same_batches(before, identity)) read_used_up(world, config.run.dir.value, start);
  return start;
}

// The state with the ledger of the checkpoint, on rank 0 of the trainers, where it is kept. Collective over them.
RunState state_with_ledger(const Start& start, const Group& trainers);

}  // namespace millrace
