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
  bool finished = false;         // the duration was reached
  std::string reason;            // else: what asked for the stop
  std::optional<StepRange> bad;  // too many bad steps in a row: training is to go back to before them
  std::optional<Error> failure;  // that ended the run after its state was saved; the same on all trainers
  RunState state;
  std::optional<std::string> checkpoint;  // the last one that was saved, when there is one
  bool is_saved = false;                  // it holds `state`
  // Of these steps: means over all but the first, loss and gradient norm over the last interval.
  Metrics totals;
  RoleCounts roles;
};

// Trains from `state` until the duration is reached, a signal or the time limit asks to stop, or a producer fails or
// falls silent; either way the last step is saved. Steps that make it go back are not, and the result says which. The
// order of a step: agreement that all have their batch, forward and backward per micro-batch, which reduces gradients,
// totals over all ranks, update or skip, account, save.
LoopResult run_loop(TrainerContext context, RunState state);

}  // namespace millrace
