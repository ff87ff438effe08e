#pragma once
#include <chrono>
#include <thread>

#include "millrace/core/stopwatch.h"

namespace millrace {

// The pause between two polls of something that MPI moves only while it is polled. At first it only yields, because the
// other side usually answers soon and a nap would slow down messages that are moving; after 20 ms it naps, so that a
// long wait leaves the core to others.
class Backoff {
 public:
  void pause() {
    if (seconds() < 0.02) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    const double now = seconds();
    awake_seconds_ += millrace::awake_seconds(now - paused_);
    paused_ = now;
  }
  // Since construction.
  double seconds() const { return watch_.seconds(); }
  // The part of these that counts towards a time limit (awake_seconds in core/stopwatch.h).
  double awake_seconds() const { return awake_seconds_; }

 private:
  Stopwatch watch_;
  double paused_ = 0, awake_seconds_ = 0;
};

}  // namespace millrace
