#include "preflight/deadline.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>

#include "millrace/core/deadline.h"

namespace millrace::preflight {

void Deadline::move(double seconds, std::string why) {
  thread_ = std::jthread([seconds, why = std::move(why)](const std::stop_token& stop) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any().wait_for(lock, stop, std::chrono::duration<double>(seconds), [] { return false; });
    if (!stop.stop_requested()) leave_within(0, Exit::timeout, why);
  });
}

}  // namespace millrace::preflight
