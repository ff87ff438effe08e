#include "run/disk_space.h"

#include <algorithm>
#include <cmath>

#include "millrace/checkpoint/reader.h"
#include "millrace/checkpoint/retention.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/core/units.h"
#include "millrace/nn/weights.h"

namespace millrace {

std::uint64_t checkpoint_bytes(const torch::nn::Module& model, bool ema) {
  return checkpoint_bytes(count_parameters(model), ema);
}

std::uint64_t checkpoint_bytes(std::int64_t elements, bool ema) {
  return sizeof(float) * static_cast<std::uint64_t>(elements) * (ema ? 4 : 3);
}

// About: between two saves lies checkpoint.every as a rule, and one save is kept once. A signal or the end of a job's
// time saves as well, and checkpoint.every=auto more seldom than keep_every may say.
static std::uint64_t count_for_good(const CheckpointConfig& config, const Duration& duration, std::int64_t global_batch,
                                    const RunPoint& start) {
  constexpr double most = 1e6;
  if (!config.every || !config.keep_every) return 0;
  const bool in_seconds = config.keep_every->unit == Duration::Unit::seconds;
  const auto length_of = [&](const Duration& d) -> std::optional<double> {
    if ((d.unit == Duration::Unit::seconds) != in_seconds) return std::nullopt;
    return in_seconds ? d.count : to_steps(d, global_batch);
  };
  const auto end = length_of(duration);
  double each = *length_of(*config.keep_every);
  if (config.every->value) each = std::max(each, length_of(*config.every->value).value_or(0));
  if (!end || each <= 0) return 0;
  const double begin = in_seconds ? start.seconds : static_cast<double>(start.step);
  return static_cast<std::uint64_t>(std::clamp(std::floor(*end / each) - std::floor(begin / each), 0.0, most));
}

CheckpointSpace plan_checkpoints(std::uint64_t bytes, const CheckpointConfig& config, const Duration& duration,
                                 std::int64_t global_batch, const RunPoint& start) {
  return {bytes, config.keep, count_for_good(config, duration, global_batch, start)};
}

std::filesystem::path checkpoint_disk(const std::filesystem::path& run_dir) {
  return existing_ancestor(checkpoints_in(run_dir));
}

// By a file that is gone at once. A folder that is not there yet will be made.
static void try_to_write(const std::filesystem::path& checkpoints) {
  std::error_code error;
  if (!std::filesystem::exists(checkpoints, error)) return;
  const AtomicFile trial(checkpoints / step_name(0));
}

void check_disk_space(const std::filesystem::path& run_dir, const CheckpointSpace& space) {
  try_to_write(checkpoints_in(run_dir));
  const auto folder = checkpoint_disk(run_dir);
  std::error_code error;
  const auto available = std::filesystem::space(folder, error).available;
  if (error) return;  // what cannot be asked is found out when something is written
  const auto free = available + leftover_bytes(run_dir) + damaged_bytes(run_dir);
  if (free < space.bytes)
    throw Error(Exit::io,
                fmt::format("run.dir: {} are free on the disk of {}, a checkpoint takes {}", format_bytes(free),
                            folder.string(), format_bytes(space.bytes)),
                "make room, choose another run.dir, or say checkpoint.every=null");
  const auto there = static_cast<int>(list_checkpoints(run_dir).size());
  const auto more = static_cast<std::uint64_t>(std::max(1, space.keep + 1 - there));
  if (free < more * space.bytes)
    log::warning("run.dir: {} are free on the disk of {}; {} more checkpoints of {} would not fit (checkpoint.keep={})",
                 format_bytes(free), folder.string(), more, format_bytes(space.bytes), space.keep);
  if (space.for_good > 0 && free < (more + space.for_good) * space.bytes)
    log::warning(
        "run.dir: {} are free on the disk of {}; checkpoint.keep_every keeps about {} more for good, {} together",
        format_bytes(free), folder.string(), space.for_good, format_bytes(space.for_good * space.bytes));
}

}  // namespace millrace
