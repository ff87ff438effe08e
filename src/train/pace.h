#pragma once
#include "millrace/comm/watchdog.h"
#include "millrace/core/phase.h"
#include "millrace/train/trainer_context.h"

// Limit for waiting on other trainers: guard.hang_timeout, times slow_factor in slow phases; a little longer than the
// watchdog's, so that the watchdog names the culprit first.
namespace millrace {

inline void set_wait_limit(const TrainerContext& context, double times) {
  context.trainers.set_time_limit(times * context.config.guard.hang_seconds() + watchdog_lead_seconds);
}

// A slow phase lasts until steady() at the end of the step.
inline void enter_slow(const TrainerContext& context, const char* phase) {
  set_wait_limit(context, phase::slow_factor);
  phase::current = phase;
}
inline void steady(const TrainerContext& context) {
  set_wait_limit(context, 1);
}

}  // namespace millrace
