#include "millrace/core/clock.h"

#include <fmt/chrono.h>

namespace millrace {

std::string utc_of(std::time_t time) {
  return fmt::format("{:%FT%TZ}", fmt::gmtime(time));
}

std::string utc_now() {
  return utc_of(std::time(nullptr));
}

}  // namespace millrace
