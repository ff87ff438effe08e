#include "run/disk_space.h"

#include <algorithm>

#include "millrace/checkpoint/reader.h"
#include "millrace/checkpoint/writer.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/core/units.h"

namespace millrace {

std::uint64_t checkpoint_bytes(const torch::nn::Module& model, bool ema) {
  std::int64_t elements = 0;
  for (const auto& parameter : model.parameters()) elements += parameter.numel();
  return sizeof(float) * static_cast<std::uint64_t>(elements) * (ema ? 4 : 3);
}

std::filesystem::path checkpoint_disk(const std::filesystem::path& run_dir) {
  auto folder = std::filesystem::absolute(checkpoints_in(run_dir));
  std::error_code error;
  while (!std::filesystem::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

void check_disk_space(const std::filesystem::path& run_dir, std::uint64_t checkpoint_bytes, int keep) {
  const auto folder = checkpoint_disk(run_dir);
  std::error_code error;
  const auto available = std::filesystem::space(folder, error).available;
  if (error) return;  // what cannot be asked is found out when something is written
  const auto free = available + leftover_bytes(run_dir);
  if (free < checkpoint_bytes)
    throw Error(Exit::io,
                fmt::format("run.dir: {} are free on the disk of {}, a checkpoint takes {}", format_bytes(free),
                            folder.string(), format_bytes(checkpoint_bytes)),
                "make room, choose another run.dir, or say checkpoint.every=null");
  const auto there = static_cast<int>(list_checkpoints(run_dir).size());
  const auto more = static_cast<std::uint64_t>(std::max(1, keep + 1 - there));
  if (free < more * checkpoint_bytes)
    log::warning("run.dir: {} are free on the disk of {}; {} more checkpoints of {} would not fit (checkpoint.keep={})",
                 format_bytes(free), folder.string(), more, format_bytes(checkpoint_bytes), keep);
}

}  // namespace millrace
