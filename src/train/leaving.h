#pragma once
#include <map>
#include <optional>
#include <string>

#include "longest.h"
#include "millrace/core/stopwatch.h"
#include "millrace/train/trainer_context.h"

namespace millrace {

// Time spent waiting for the samples of a step, in seconds.
struct SampleWait {
  double own = 0;      // until this trainer had its batch
  double longest = 0;  // of all trainers: how long the step was held up
};

// After how many seconds the log names a producer whose samples do not come, long before guard.hang_timeout ends the
// run for it.
struct LatePatience {
  double usual = 30;
  double first = 120;  // before the first step of a process: the producer may still be loading
  double again = 600;  // before the same producer is named again
};

// NOTE [Leaving together] A step begins when every trainer has its batch, or not at all: the trainers look at each
// other about once a second while one of them waits for samples. So when a trainer is told to stop, its producer dies
// or the job's time ends, all trainers leave together between two steps, where the state is whole and can be saved.
class Leaving {
 public:
  explicit Leaving(const TrainerContext& context, const LatePatience& patience = {});

  // Waits for the batches of the next step. Nothing if all leave instead. `save_seconds`: how long a save takes; it
  // must fit in before the job's end. Collective.
  std::optional<SampleWait> wait_for_batches(double save_seconds);
  // For long work between steps: true on all trainers once one of them has to leave, or wants to end that work
  // (`mine`). If they have to leave, the next wait_for_batches says why. Collective.
  bool is_wanted(double save_seconds, bool mine = false) const;
  // Until the end of the job's time, which rank 0 alone knows; infinite if nobody does.
  double seconds_left() const;
  // Seconds that a step took, without waiting for samples.
  void step_took(double seconds);
  // Seconds that decoding pictures takes; it cannot be interrupted either.
  void pictures_took(double seconds) { longest_pictures_.add(seconds); }

  // Tells producers to stop, since the last save may take a while. An error is kept for shared_failure: a producer that
  // is gone must not keep trainers from saving.
  void stop_producers();

  // Why all leave before the duration is reached; empty: they do not.
  const std::string& reason() const { return reason_; }
  // The error that ended the wait for samples, of the lowest rank that has seen one; the same on all. Collective.
  std::optional<Error> shared_failure() const;

 private:
  bool next_batch(double seconds, double waited);
  void look_for_silence(double waited);
  std::optional<Overdue> find_late_producer(double silent) const;
  bool tell_of_late(const std::optional<Overdue>& mine);
  int wish_to_stop(double save_seconds) const;

  const TrainerContext& context_;
  const LatePatience patience_;
  const double job_end_;  // Unix seconds
  Longest longest_step_{0.999}, longest_pictures_{0.8};
  bool is_first_ = true;              // no step of this process is done yet
  std::map<int, Stopwatch> told_of_;  // rank 0: time since a producer was named
  std::string reason_;
  std::optional<Error> failure_;  // seen by this trainer; kept until the state is safe
};

}  // namespace millrace
