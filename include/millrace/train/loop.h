#pragma once
#include <optional>
#include <string>

#include "millrace/checkpoint/run_state.h"
#include "millrace/core/error.h"
#include "millrace/train/balance.h"
#include "millrace/train/metrics.h"
#include "millrace/train/progress.h"
#include "millrace/train/trainer_context.h"

namespace millrace {

struct LoopResult {
  bool finished = false;  // the duration was reached
  std::string reason;     // if not finished: why it stopped
  // guard.on_repeat=rollback, and too many bad steps in a row: training has to go back to before them.
  std::optional<StepRange> bad;
  std::optional<Error> failure;  // the error that ended the run after its state was saved; the same on all trainers
  RunState state;
  std::optional<std::string> checkpoint;  // the newest, if there is one
  bool is_saved = false;                  // `checkpoint` holds `state`
  // Means over this process's steps but the first; loss and gradient norm over the last interval.
  Metrics totals;
  RoleCounts roles;
};

// Trains from `state` until the duration is reached, a signal or the time limit asks to stop, or a producer fails or
// falls silent; in each case the last step is saved. Bad steps that make training go back are not saved;
// LoopResult::bad says which they are.
// Order of a step: agreement that all trainers have their batch; forward and backward of each micro-batch, reducing
// gradients; totals over all ranks; update or skip; accounting; save.
LoopResult run_loop(TrainerContext context, RunState state);

}  // namespace millrace
