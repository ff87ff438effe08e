#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "millrace/core/error.h"
#include "millrace/train/cadence.h"

namespace millrace {

// requeue where another start may get over it (storage, hangs), else failed: a person has to look.
const char* state_after(const Error& error);

// RUN/STATE: what the run is doing, for people and for slurm/requeue.sh. JSON with a key on each line: state, job,
// restart, step, samples, checkpoint, digest, reason. Rank 0 writes it: when the run folder is opened, with every
// checkpoint, when a stop is asked for, and at the end.
class StateFile {
 public:
  explicit StateFile(std::filesystem::path run_dir) : run_dir_(std::move(run_dir)) {}

  // `state`: running, stopping, requeue, done or failed. `checkpoint`: the newest; what the file said before when there
  // is none here. `done` writes RUN/DONE with it. A disk that refuses the file is warned about: except for `done`, what
  // it says can be found in other files.
  void write(const std::string& state, const RunPoint& at, const std::optional<std::string>& checkpoint,
             const std::string& reason = {}) const;
  // The same step and checkpoint with what becomes of the run by `error`, unless it has ended: by whichever rank ends
  // it.
  void write_failed(const Error& error) const;

 private:
  std::filesystem::path run_dir_;
};

}  // namespace millrace
