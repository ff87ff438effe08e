#pragma once
#include <functional>

namespace millrace {

// Calls `done` until it returns true; these calls move what is waited for. The watchdog and metrics are told of the
// wait. Error(suspect_node) naming `what` (a literal) and this rank after `limit_seconds`, in which this process was
// running.
void wait_for_others(const std::function<bool()>& done, double limit_seconds, const char* what);

}  // namespace millrace
