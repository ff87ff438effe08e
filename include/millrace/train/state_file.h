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

// The status that `error` leaves a run in: requeue if another start may get past it (a stop, storage, a hang), else
// failed: a person has to look.
RunStatus status_after(const Error& error);

// RUN/STATE: what the run is doing, for people and for slurm/requeue.sh. JSON with a key on each line: state, step,
// samples, checkpoint, digest, job, restart, exit (the code it ended with, else null), reason. It is written by rank 0
// of the world when the run folder is opened; by rank 0 of the trainers with every checkpoint, when a stop is asked for
// and at the end; and by a rank that fails.
class StateFile {
 public:
  // Nothing is written any more once another instance has taken `lease`; null: the folder is known to be ours.
  explicit StateFile(std::filesystem::path run_dir, const RunLease* lease = nullptr)
      : run_dir_(std::move(run_dir)), lease_(lease) {}

  // `checkpoint`: the newest, if there is one. `done` also writes RUN/DONE. A file that cannot be written is an
  // Error(io) for `done`, else a warning: other files hold the same facts.
  void write(RunStatus status, const RunPoint& at, const std::optional<std::string>& checkpoint,
             std::optional<Exit> exit = {}, const std::string& reason = {}) const;
  // The same for a run that does not train, with `facts` in place of step, samples, checkpoint and digest. Error(io).
  void write_facts(RunStatus status, const nlohmann::ordered_json& facts, std::optional<Exit> exit) const;
  // Keeps step and checkpoint and writes what `error` makes of the run, unless it has ended already. Called by
  // whichever rank ends the run.
  void write_failed(const Error& error) const;
  // write() in the middle of a run; does nothing if another rank has ended it: a rank that was thought to hang may wake
  // up.
  void update(RunStatus status, const RunPoint& at, const std::optional<std::string>& checkpoint,
              const std::string& reason) const;

 private:
  bool has_ended() const;  // according to the file
  bool is_ours() const { return !lease_ || lease_->is_ours(); }

  std::filesystem::path run_dir_;
  const RunLease* lease_;
};

}  // namespace millrace
