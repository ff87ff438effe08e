#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "data_account.h"
#include "longest.h"
#include "millrace/checkpoint/writer.h"
#include "millrace/core/error.h"
#include "millrace/train/metrics.h"
#include "millrace/train/progress.h"
#include "millrace/train/state_file.h"
#include "millrace/train/trainer_context.h"

namespace millrace {

// Whether a run that starts at this step resumes from another run's checkpoint, or from one of its own that was put
// aside (step-N.abandoned-*), whatever path and links lead there. False if that cannot be told, and on ranks other than
// 0.
bool begins_elsewhere(const TrainerContext& context, std::int64_t step);

// The checkpoints of this process, made while training goes on, and what RUN/STATE says of them.
class Saves {
 public:
  // `state`: the loop's; saves fill in its ledger and cursors.
  Saves(const TrainerContext& context, RunState& state, DataAccount& data, Progress* progress);

  // Whether rank 0 wants a save now: with checkpoint.every=auto when the interval that the last save's cost allows has
  // passed; always five minutes after a failed save. `seconds`: of training since the run began.
  bool wants(double seconds) const;
  // True while this rank writes or reads back.
  bool busy() const { return writer_.busy(); }
  // Seconds from the start of a save until it is safe on disk, a guess before the first one; 0 with
  // checkpoint.every=null.
  double seconds_needed() const;
  // A slow disk may be guessed wrongly: a job that is short gets to train.
  void guess_at_most(double seconds) { guessed_seconds_ = std::min(guessed_seconds_, seconds); }

  // Moves the stripes' cursors past the samples of a step.
  void advance(const std::vector<SampleRef>& refs);
  // Continues a save that is under way, unless some rank `is_busy`, and begins one if it `is_due`. `seconds`: of
  // training since the run began. Collective.
  void after_step(bool is_busy, bool is_due, double seconds);
  // Completes a save that is under way and deletes the checkpoints that checkpoint.keep has no room for. Collective.
  void finish_begun();
  // Saves the final state, unless checkpoint.every=null. Error(io) on all ranks if it is not on disk and readable.
  // Collective.
  void save_last();

  // From now on STATE says that the run is stopping, and why.
  void stop_because(const std::string& reason);
  // Path of the newest checkpoint, of this process or the one it resumed from.
  std::optional<std::string> newest() const;
  // Step and age of the newest checkpoint; nothing with checkpoint.every=null.
  std::optional<SavedPoint> last_saved() const;
  // Whether the newest checkpoint holds the present step.
  bool hold_all() const;

 private:
  void begin();
  void commit();
  CheckpointWriter::Found settle();
  Error failure_of_last() const;
  template <class Result>
  Result go_on(Result (CheckpointWriter::*part)());
  void gather_cursors();
  void write_state() const;

  const TrainerContext& context_;
  RunState& state_;
  DataAccount& data_;
  Progress* progress_;  // on rank 0
  CheckpointWriter writer_;
  StateFile state_file_;
  std::string reason_;
  const std::int64_t start_;  // step at which this process began

  StripeCursors own_cursors_;      // of this trainer's stripes, as far as this process has moved them
  std::int64_t cursors_step_ = 0;  // that state_.cursors belong to

  double started_at_;  // the last save; seconds in training
  bool has_failed_ = false;
  double cost_ = 0;  // seconds that the last save held up training
  double took_ = 0;  // the same, and what it did in the background
  double guessed_seconds_ = 0;
  Longest longest_save_{0.8};
};

}  // namespace millrace
