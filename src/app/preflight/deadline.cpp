#include "preflight/deadline.h"

#include <stop_token>

#include "millrace/core/deadline.h"

namespace millrace::preflight {

Deadline::Deadline(double seconds, std::string why) {
  move(seconds, std::move(why));
  thread_ = std::jthread([this](const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested() && Clock::now() < end_)
      moved_.wait_until(lock, stop, end_, [this, end = end_] { return end_ != end; });
    if (!stop.stop_requested()) leave_within(0, Exit::timeout, why_);
  });
}

void Deadline::move(double seconds, std::string why) {
  {
    const std::lock_guard lock(mutex_);
    end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    why_ = std::move(why);
  }
  moved_.notify_all();
}

}  // namespace millrace::preflight
