#include "millrace/checkpoint/cadence.h"

#include <algorithm>
#include <cmath>

namespace millrace {

static double measure(const RunPoint& point, Duration::Unit unit) {
  switch (unit) {
    case Duration::Unit::steps:
      return static_cast<double>(point.step);
    case Duration::Unit::samples:
      return static_cast<double>(point.samples);
    case Duration::Unit::seconds:
      return point.seconds;
  }
  return 0;
}

bool crossed(const std::optional<Duration>& every, const RunPoint& before, const RunPoint& after) {
  if (!every || every->count <= 0) return false;
  return std::floor(measure(after, every->unit) / every->count) >
         std::floor(measure(before, every->unit) / every->count);
}

bool reached(const Duration& duration, const RunPoint& point) {
  return measure(point, duration.unit) >= duration.count;
}

std::optional<double> last_step(const Duration& duration, const RunPoint& now, std::int64_t global_batch) {
  switch (duration.unit) {
    case Duration::Unit::steps:
      return std::ceil(duration.count);
    case Duration::Unit::samples:
      return static_cast<double>(now.step) +
             std::ceil((duration.count - static_cast<double>(now.samples)) / static_cast<double>(global_batch));
    case Duration::Unit::seconds:
      break;
  }
  return std::nullopt;
}

double auto_save_interval(double cost_seconds, int trainers) {
  constexpr double seconds_between_faults = 50'000 * 3600.0;  // of one GPU with its share of a node
  const double young = std::sqrt(2 * cost_seconds * seconds_between_faults / trainers);
  return std::max(std::clamp(young, 300.0, 600.0), 50 * cost_seconds);
}

}  // namespace millrace
