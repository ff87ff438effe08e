#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "millrace/checkpoint/cadence.h"
#include "millrace/checkpoint/run_lease.h"
#include "millrace/core/error.h"
#include "millrace/core/run_status.h"

namespace millrace {

// requeue where another start may get over it (a stop, storage, hangs), else failed: a person has to look.
RunStatus status_after(const Error& error);

// RUN/STATE: what the run is doing, for people and for slurm/requeue.sh. JSON with a key on each line: state, step,
// samples, checkpoint, digest, job, restart, exit (the code it ended with, else null), reason. Rank 0 of the world
// writes it when the run folder is opened, that of the trainers with every checkpoint, when a stop is asked for and at
// the end, and the rank that fails when it does.
class StateFile {
 public:
  // Once another instance has taken `lease`, nothing is written any more; null: the folder is known to be ours.
  explicit StateFile(std::filesystem::path run_dir, const RunLease* lease = nullptr)
      : run_dir_(std::move(run_dir)), lease_(lease) {}

  // `checkpoint`: the newest, if there is one. `done` writes RUN/DONE with it. A disk that refuses the file is warned
  // about: except for `done`, what it says can be found in other files.
  void write(RunStatus status, const RunPoint& at, const std::optional<std::string>& checkpoint,
             std::optional<Exit> exit = {}, const std::string& reason = {}) const;
  // The same of a run that does not train: `facts` in place of step, samples, checkpoint and digest.
  void write_facts(RunStatus status, const nlohmann::ordered_json& facts, std::optional<Exit> exit) const;
  // The same step and checkpoint with what becomes of the run by `error`, unless it has ended: by whichever rank ends
  // it.
  void write_failed(const Error& error) const;
  // `write` in the middle of a run, unless another rank has ended it: one that was thought to hang may wake up.
  void update(RunStatus status, const RunPoint& at, const std::optional<std::string>& checkpoint,
              const std::string& reason) const;

 private:
  bool has_ended() const;  // by what the file says
  bool is_ours() const { return !lease_ || lease_->is_ours(); }

  std::filesystem::path run_dir_;
  const RunLease* lease_;
};

}  // namespace millrace
