#pragma once
#include <functional>

namespace millrace {

// Asks `done` until it says so; it moves what is waited for. The watchdog and metrics are told of it.
// Error(suspect_node) naming `what` (a literal) and this rank after `limit_seconds`, in which this process was running.
void wait_for_others(const std::function<bool()>& done, double limit_seconds, const char* what);

}  // namespace millrace
