#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "run_folder.h"

namespace millrace::storm {

int last_step(const fs::path& run) {
  std::ifstream in(run / "metrics.jsonl", std::ios::binary | std::ios::ate);
  if (!in) return 0;
  const auto size = static_cast<std::streamoff>(in.tellg());
  in.seekg(std::max<std::streamoff>(0, size - 4096));
  const std::string tail{std::istreambuf_iterator<char>(in), {}};
  constexpr std::string_view mark = "{\"step\":";
  const auto at = tail.rfind(mark);
  return at == tail.npos ? 0 : std::atoi(tail.c_str() + at + mark.size());
}

std::vector<int> listed_checkpoints(const fs::path& run) {
  std::vector<int> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints", error)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("step-") && !entry.path().has_extension()) steps.push_back(std::atoi(&name[5]));
  }
  std::ranges::sort(steps);
  return steps;
}

int last_checkpoint(const fs::path& run) {
  const auto steps = listed_checkpoints(run);
  return steps.empty() ? 0 : steps.back();
}

fs::path checkpoint_folder(const fs::path& run, int step) {
  return run / "checkpoints" / fmt::format("step-{:08d}", step);
}

}  // namespace millrace::storm
