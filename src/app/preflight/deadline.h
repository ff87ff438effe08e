#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace millrace::preflight {

// Ends this process with 76 and `why` on stderr unless it is moved on, or destroyed, in time: for calls that wait for
// others and know no limit, such as MPI_Init.
class Deadline {
 public:
  Deadline(double seconds, std::string why);
  // From any thread.
  void move(double seconds, std::string why);

 private:
  using Clock = std::chrono::steady_clock;

  std::mutex mutex_;
  std::condition_variable_any moved_;
  Clock::time_point end_;
  std::string why_;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace millrace::preflight
