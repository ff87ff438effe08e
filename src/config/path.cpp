#include "path.h"

#include <fmt/format.h>

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

}  // namespace millrace::config
