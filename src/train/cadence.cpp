#include "millrace/train/cadence.h"

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

double steps_of(const Duration& duration, std::int64_t global_batch) {
  switch (duration.unit) {
    case Duration::Unit::steps:
      return duration.count;
    case Duration::Unit::samples:
      return std::ceil(duration.count / static_cast<double>(global_batch));
    case Duration::Unit::seconds:
      return 0;
  }
  return 0;
}

}  // namespace millrace
