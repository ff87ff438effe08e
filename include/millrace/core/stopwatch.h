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
  static_assert(Clock::is_steady, "a clock that is set would end what waits, or never end it");
  Clock::time_point start_ = Clock::now();
};

// The seconds of one iteration of a polling loop that count towards a timeout. A loop polls at least once a second; an
// iteration of more than 5 s means that this process was suspended, perhaps with all others (scontrol suspend, a closed
// laptop), so at most 5 s count.
inline double awake_seconds(double turn) {
  constexpr double longest_turn = 5;
  return std::min(turn, longest_turn);
}

}  // namespace millrace
