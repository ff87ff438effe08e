#pragma once
#include <map>
#include <optional>
#include <string>

#include "longest.h"
#include "millrace/core/stopwatch.h"
#include "millrace/train/trainer_context.h"

namespace millrace {

// For the samples of a step, in seconds.
struct SampleWait {
  double own = 0;      // until this trainer had its batch
  double longest = 0;  // of all trainers: so long the step was held up
};

// When the log names a producer whose samples do not come, long before guard.hang_timeout ends the run for it; seconds.
struct LatePatience {
  double usual = 30;
  double first = 120;  // before the first step of a process, when it may still be loading
  double again = 600;  // of the same producer
};

// NOTE [Leaving together] A step begins when every trainer has its batch, or not at all: the trainers look at each
// other about once a second while one of them waits for samples. So a trainer that is told to stop, one whose producer
// has died, and the end of the job's time take all others with them at a step's border, where the state is whole and
// can be saved.
class Leaving {
 public:
  explicit Leaving(const TrainerContext& context, const LatePatience& patience = {});

  // Waits for the batches of the next step. Nothing when all leave instead. `save_seconds`: what a save takes, which
  // must fit before the job's end. Collective.
  std::optional<SampleWait> wait_for_batches(double save_seconds);
  // In the middle of what comes after a step and takes long: true on all trainers once one of them is to leave, or
  // wants to end it (`mine`). The next wait_for_batches then says why they leave. Collective.
  bool is_wanted(double save_seconds, bool mine = false) const;
  // Until the end of the job's time, of which rank 0 alone knows; infinite where nobody does.
  double seconds_left() const;
  // A step, without waiting for samples.
  void step_took(double seconds);
  // What else cannot be left in its middle.
  void pictures_took(double seconds) { longest_pictures_.add(seconds); }

  // The save may take a while: producers need not encode on. Talking to one that is gone must not keep the others from
  // saving.
  void stop_producers();

  // Why all leave before the duration is reached; empty: they don't.
  const std::string& reason() const { return reason_; }
  // A producer's, that of the lowest rank that has seen one. Collective.
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
  bool is_first_ = true;              // step of this process
  std::map<int, Stopwatch> told_of_;  // rank 0: since a producer was named
  std::string reason_;
  std::optional<Error> failure_;  // as this trainer has seen it; kept until the state is safe
};

}  // namespace millrace
