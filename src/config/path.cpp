#include "path.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::config {

Path split(std::string_view dotted) {
  Path path(1);
  for (const char c : dotted) {
    if (c == '.' || c == '[') {
      path.emplace_back();
    } else if (c != ']') {
      path.back() += c;
    }
  }
  return path;
}

std::string join(const Path& path) {
  std::string out;
  for (const std::string& step : path) {
    const bool is_index = !step.empty() && step.find_first_not_of("0123456789") == step.npos;
    out += is_index ? fmt::format("[{}]", step) : fmt::format("{}{}", out.empty() ? "" : ".", step);
  }
  return out;
}

std::string join(std::string_view section, std::string_view name) {
  return section.empty() ? std::string(name) : fmt::format("{}.{}", section, name);
}

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

}  // namespace millrace::config
