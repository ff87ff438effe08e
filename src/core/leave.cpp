#include "millrace/core/leave.h"

#include <unistd.h>

#include <chrono>
#include <thread>

namespace millrace {

void leave_within(double seconds, Exit exit, std::string why) {
  std::thread([=, why = std::move(why)] {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    // Nothing here may wait for a lock that a hanging thread holds: no log, no exit handlers.
    const auto line =
        fmt::format("millrace: {}{}\n", why,
                    seconds > 0 ? fmt::format("; after {:.0f} s more this process ends itself", seconds) : "");
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
    ::_exit(static_cast<int>(exit));
  }).detach();
}

}  // namespace millrace
