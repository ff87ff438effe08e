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

// True when a multiple of `every` lies in (before, after]; never without `every`. So each multiple counts once, even if
// a step jumps over it.
bool crossed(const std::optional<Duration>& every, const RunPoint& before, const RunPoint& after);

// True when the run is as long as `duration`.
bool reached(const Duration& duration, const RunPoint& point);

// The step at which a run that stands at `now` reaches `duration`, by batches of this size; nothing if the duration is
// a time.
std::optional<double> last_step(const Duration& duration, const RunPoint& now, std::int64_t global_batch);

// Seconds of training between two saves, each of which holds training up for `cost_seconds`: 5 to 10 minutes, chosen so
// that the cost of saves and what a fault loses are small together (Young, "A first order approximation to the optimum
// checkpoint interval", 1974), or longer if saves would take more than 2 % of the time.
double auto_save_interval(double cost_seconds, int trainers);

}  // namespace millrace
