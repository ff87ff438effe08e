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

// Whether a run that begins at this step does so at another run's checkpoint, or at one of its own that was put aside
// (step-N.abandoned-*), however it is spelled and wherever links lead. Where that cannot be told, it is this run's.
// Rank 0 asks.
bool begins_elsewhere(const TrainerContext& context, std::int64_t step);

// The checkpoints of this process, made while training goes on, and what RUN/STATE says of them.
class Saves {
 public:
  // `state`: the loop's, which changes; here its ledger and its places in the data are filled in.
  Saves(const TrainerContext& context, RunState& state, DataAccount& data, Progress* progress);

  // Rank 0's wish, `seconds` of training after the run's beginning: with checkpoint.every=auto by the cost of the last
  // save, and whatever it is some minutes after one that has failed.
  bool wants(double seconds) const;
  // True while this rank writes or reads back.
  bool busy() const { return writer_.busy(); }
  // Seconds from a save's beginning until it is safe, before the first one a guess; 0 when no checkpoints are wanted.
  double seconds_needed() const;
  // A slow disk may be guessed wrongly: a job that is short gets to train.
  void guess_at_most(double seconds) { guessed_seconds_ = std::min(guessed_seconds_, seconds); }

  // The samples of a step were used.
  void advance(const std::vector<SampleRef>& refs);
  // Goes on with a save that is under way, unless some rank is still `busy`, and begins one that `is_due`, `seconds` of
  // training after the run's beginning. Collective.
  void after_step(bool is_busy, bool is_due, double seconds);
  // Puts a save that is under way where a restart finds it, and removes those that checkpoint.keep has no room for.
  // Collective.
  void finish_begun();
  // The state at the end must be on disk and readable, unless the user wanted no checkpoints. Error(io), on all ranks.
  // Collective.
  void save_last();

  // From now on STATE says that the run is stopping, and why.
  void stop_because(const std::string& reason);
  // The newest, of this process or the one that it continued.
  std::optional<std::string> newest() const;
  // Where that stands; nothing when no checkpoints are wanted.
  std::optional<SavedPoint> last_saved() const;
  // It holds the present step.
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
  std::int64_t cursors_step_ = 0;  // at which state_.cursors were true

  double started_at_;  // the last save; seconds in training
  bool has_failed_ = false;
  double cost_ = 0;  // seconds that the last save has held up training
  double took_ = 0;  // the same with what went on beside training
  double guessed_seconds_ = 0;
  Longest longest_save_{0.8};
};

}  // namespace millrace
