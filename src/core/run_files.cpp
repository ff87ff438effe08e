#include "millrace/core/run_files.h"

#include <fmt/format.h>

namespace millrace {

std::filesystem::path checkpoints_in(const std::filesystem::path& run_dir) {
  return run_dir / "checkpoints";
}

std::string step_name(std::int64_t step) {
  return fmt::format("step-{:08d}", step);
}

std::string rank_name(std::int64_t rank) {
  return fmt::format("rank-{:05d}", rank);
}

}  // namespace millrace
