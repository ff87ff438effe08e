#include "millrace/config/closest.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::config {

namespace {

// Letters to insert, drop, change or swap until `a` is `b`.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  // rows[i][j]: distance of the first i letters of a to the first j of b (Damerau's, restricted to neighbours).
  std::vector<std::vector<std::size_t>> rows(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        rows[i][j] = i + j;
        continue;
      }
      const std::size_t changed = rows[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      rows[i][j] = std::min({changed, rows[i - 1][j] + 1, rows[i][j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) rows[i][j] = std::min(rows[i][j], rows[i - 2][j - 2] + 1);
    }
  }
  return rows[a.size()][b.size()];
}

}  // namespace

std::string closest(std::string_view name, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = std::min(name.size(), std::max<std::size_t>(2, name.size() / 3) + 1);
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance >= best_distance) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  const std::string best = closest(name, known);
  return best.empty() ? "" : fmt::format("; did you mean '{}'?", best);
}

}  // namespace millrace::config
