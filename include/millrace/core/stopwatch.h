#pragma once
#include <algorithm>
#include <chrono>

namespace millrace {

// Wall time since its construction.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  // Seconds since construction or the last lap.
  double lap() {
    const double passed = seconds();
    start_ = Clock::now();
    return passed;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

// Of the seconds that a turn of a loop took which looks every second or more often, those that count against whom it
// waits for. A turn that took longer was not spent looking: this process was stopped meanwhile, and perhaps all others
// with it (scontrol suspend, a closed laptop).
inline double awake_seconds(double turn) {
  constexpr double longest_turn = 5;
  return std::min(turn, longest_turn);
}

}  // namespace millrace
