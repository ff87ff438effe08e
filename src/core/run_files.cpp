#include "millrace/core/run_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "millrace/core/files.h"
#include "millrace/core/text.h"

namespace millrace {

std::filesystem::path checkpoints_in(const std::filesystem::path& run_dir) {
  return run_dir / "checkpoints";
}

namespace {

// Links in its path are followed, and one that stands in its own place.
bool lies_in(const std::filesystem::path& checkpoints, const std::filesystem::path& checkpoint) {
  std::error_code error;
  return std::filesystem::equivalent(checkpoint / "..", checkpoints, error);
}

// That one is not.
std::filesystem::path folder_of(const std::filesystem::path& checkpoint) {
  std::error_code error;
  return (std::filesystem::absolute(checkpoint, error) / "").parent_path().parent_path();
}

}  // namespace

bool is_checkpoint_of(const std::filesystem::path& run_dir, const std::filesystem::path& checkpoint) {
  std::error_code error;
  const auto checkpoints = checkpoints_in(run_dir);
  return lies_in(checkpoints, checkpoint) || std::filesystem::equivalent(folder_of(checkpoint), checkpoints, error);
}

std::filesystem::path place_of_checkpoint(const std::filesystem::path& checkpoint) {
  return resolved_path(checkpoint);
}

std::filesystem::path run_of_checkpoint(const std::filesystem::path& checkpoint) {
  auto run_dir = folder_of(checkpoint).parent_path();
  if (lies_in(checkpoints_in(run_dir), checkpoint)) return run_dir;  // also where its checkpoints/ is a link
  const auto folder = place_of_checkpoint(checkpoint).parent_path();
  std::error_code error;
  const bool is_in_a_run = folder == checkpoints_in(folder.parent_path()) &&
                           std::filesystem::exists(folder.parent_path() / run_file::config, error);
  return !is_in_a_run && is_checkpoint_of(run_dir, checkpoint) ? run_dir : folder.parent_path();
}

std::string step_name(std::int64_t step) {
  return fmt::format("step-{:08d}", step);
}

std::optional<std::int64_t> step_of_name(std::string_view name) {
  constexpr std::string_view start = "step-";
  constexpr std::size_t fewest_digits = 8;
  if (!name.starts_with(start)) return std::nullopt;
  const auto digits = name.substr(start.size());
  const bool is_number = std::ranges::all_of(digits, [](char c) { return '0' <= c && c <= '9'; });
  if (digits.size() < fewest_digits || !is_number) return std::nullopt;
  return parse_number<std::int64_t>(digits);  // no run comes to larger ones
}

std::string rank_name(std::int64_t rank) {
  return fmt::format("rank-{:05d}", rank);
}

}  // namespace millrace
