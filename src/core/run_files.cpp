#include "millrace/core/run_files.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>
#include <system_error>

namespace millrace {

std::filesystem::path checkpoints_in(const std::filesystem::path& run_dir) {
  return run_dir / "checkpoints";
}

bool is_checkpoint_of(const std::filesystem::path& run_dir, const std::filesystem::path& checkpoint) {
  std::error_code error;
  return std::filesystem::equivalent(checkpoint / "..", checkpoints_in(run_dir), error);
}

std::filesystem::path place_of_checkpoint(const std::filesystem::path& checkpoint) {
  std::error_code error;
  const auto place = std::filesystem::canonical(checkpoint, error);
  return error ? checkpoint : place;
}

std::filesystem::path run_of_checkpoint(const std::filesystem::path& checkpoint) {
  std::error_code error;
  const auto spelled = (std::filesystem::absolute(checkpoint, error) / "").parent_path();
  const auto run_dir = spelled.parent_path().parent_path();
  if (is_checkpoint_of(run_dir, checkpoint)) return run_dir;  // also where its checkpoints/ is a link
  return place_of_checkpoint(checkpoint).parent_path().parent_path();
}

std::filesystem::path lines_beyond(const std::filesystem::path& file, std::int64_t step) {
  return fmt::format("{}.beyond-{}", file.string(), step_name(step));
}

std::optional<std::int64_t> step_of_lines_beyond(const std::filesystem::path& file) {
  constexpr std::string_view start = ".beyond-step-";
  const auto extension = file.extension().string();
  if (!extension.starts_with(start)) return std::nullopt;
  const std::int64_t step = std::strtoll(extension.c_str() + start.size(), nullptr, 10);
  return lines_beyond(file.stem(), step) == file.filename() ? std::optional(step) : std::nullopt;
}

std::string step_name(std::int64_t step) {
  return fmt::format("step-{:08d}", step);
}

std::string rank_name(std::int64_t rank) {
  return fmt::format("rank-{:05d}", rank);
}

}  // namespace millrace
