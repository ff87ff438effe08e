#include "millrace/core/startup.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "millrace/core/stopwatch.h"

namespace millrace::startup {
namespace {

struct Parts {
  Stopwatch whole, part;
  std::vector<std::pair<std::string, double>> seconds;
};

Parts& parts() {
  static Parts all;
  return all;
}

}  // namespace

void begin() {
  parts() = {};
}

void done(const char* part) {
  auto& seconds = parts().seconds;
  const auto taken = std::exchange(parts().part, Stopwatch()).seconds();
  const auto found = std::ranges::find(seconds, part, &std::pair<std::string, double>::first);
  if (found == seconds.end()) {
    seconds.emplace_back(part, taken);
  } else {
    found->second += taken;
  }
}

std::string describe() {
  constexpr double worth_a_word = 0.05;
  auto text = fmt::format("{:.1f} s", parts().whole.seconds());
  const char* separator = ": ";
  for (const auto& [part, seconds] : parts().seconds) {
    if (seconds < worth_a_word) continue;
    text += fmt::format("{}{} {:.1f}", separator, part, seconds);
    separator = ", ";
  }
  return text;
}

}  // namespace millrace::startup
