#pragma once
#include <cstdint>
#include <optional>

#include "millrace/core/units.h"

// When something is due in a run. Durations are counted from the run's beginning, over all its restarts.
namespace millrace {

// How far a run has come.
struct RunPoint {
  std::int64_t step = 0;
  std::int64_t samples = 0;
  double seconds = 0;  // in training
};

// True when a multiple of `every` lies in (before, after]; never without `every`. So what is due is due once, also
// where steps jump over the multiple.
bool crossed(const std::optional<Duration>& every, const RunPoint& before, const RunPoint& after);

// True when the run is as long as `duration`.
bool reached(const Duration& duration, const RunPoint& point);

// The step with which a run that has come to `now` will be as long as `duration`, by batches of this size; nothing for
// durations in time.
std::optional<double> last_step(const Duration& duration, const RunPoint& now, std::int64_t global_batch);

// Seconds of training between two saves that keep what saves cost and what a fault loses small together (Young, "A
// first order approximation to the optimum checkpoint interval", 1974), for a save that holds training up for
// `cost_seconds`: 5 to 10 minutes, or longer where saves would take more than 2 % of the time.
double auto_save_interval(double cost_seconds, int trainers);

}  // namespace millrace
