#include "millrace/core/clock.h"

#include <fmt/chrono.h>

namespace millrace {

std::string utc_now() {
  return fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)));
}

}  // namespace millrace
