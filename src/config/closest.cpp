#include "millrace/config/closest.h"

#include <fmt/format.h>

#include <algorithm>

#include "path.h"

namespace millrace::config {

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  std::string_view best;
  std::size_t best_distance = std::min(name.size(), std::max<std::size_t>(2, name.size() / 3) + 1);
  for (const auto& candidate : known) {
    const auto distance = edit_distance(name, candidate);
    if (distance >= best_distance) continue;
    best = candidate;
    best_distance = distance;
  }
  return best.empty() ? "" : fmt::format("; did you mean '{}'?", best);
}

}  // namespace millrace::config
