#include "launch/deadline.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>

#include "millrace/comm/launch_rank.h"
#include "millrace/core/leave.h"
#include "millrace/core/process_name.h"

namespace millrace {

void Deadline::move(double seconds, std::string why) {
  thread_ = std::jthread([seconds, why = std::move(why)](const std::stop_token& stop) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any().wait_for(lock, stop, std::chrono::duration<double>(seconds), [] { return false; });
    if (!stop.stop_requested()) leave_within(0, Exit::suspect_node, why);
  });
}

std::string this_process() {
  const auto rank = launch_rank();
  return rank ? fmt::format("rank {} on {}", *rank, host_name()) : host_name();
}

}  // namespace millrace
