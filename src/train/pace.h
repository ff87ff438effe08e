#pragma once
#include "millrace/comm/watchdog.h"
#include "millrace/core/phase.h"
#include "millrace/train/trainer_context.h"

// How long trainers may wait for each other: guard.hang_timeout, which is for the steady state, or slow_factor times
// as long in what takes longer. A little more than the watchdog waits.
namespace millrace {

inline void set_wait_limit(const TrainerContext& context, double times) {
  context.trainers.set_time_limit(times * context.config.guard.hang_seconds() + watchdog_lead_seconds);
}

// Slow phases last until the end of the step, which calls `steady`.
inline void enter_slow(const TrainerContext& context, const char* phase) {
  set_wait_limit(context, phase::slow_factor);
  phase::current = phase;
}
inline void steady(const TrainerContext& context) {
  set_wait_limit(context, 1);
}

}  // namespace millrace
