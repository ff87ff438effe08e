#include "preflight/time_limit.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>

#include "millrace/core/deadline.h"

namespace millrace::preflight {

TimeLimit::TimeLimit(double seconds, std::string why)
    : thread_([=, why = std::move(why)](const std::stop_token& stop) {
        std::mutex mutex;
        std::condition_variable_any never;
        std::unique_lock lock(mutex);
        never.wait_for(lock, stop, std::chrono::duration<double>(seconds), [] { return false; });
        if (!stop.stop_requested()) leave_within(0, Exit::timeout, why);
      }) {}

}  // namespace millrace::preflight
