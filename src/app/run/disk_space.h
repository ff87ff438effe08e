#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>

#include "millrace/checkpoint/cadence.h"
#include "millrace/train/train_config.h"

// Whether a run's checkpoints fit on its disk.
namespace millrace {

// Bytes of a checkpoint of this model: weights, moments and, where it is kept, EMA in float32.
std::uint64_t checkpoint_bytes(std::int64_t elements, bool ema);
std::uint64_t checkpoint_bytes(const torch::nn::Module& model, bool ema);

struct CheckpointSpace {
  std::uint64_t bytes = 0;     // of one checkpoint
  int keep = 0;                // of the newest
  std::uint64_t for_good = 0;  // about so many checkpoint.keep_every will keep besides

  std::uint64_t in_all() const { return (static_cast<std::uint64_t>(keep) + 1 + for_good) * bytes; }
};

// What a run that stands at `start` will have. Where times and steps cannot be compared, nothing for good.
CheckpointSpace plan_checkpoints(std::uint64_t bytes, const CheckpointConfig& config, const Duration& duration,
                                 std::int64_t global_batch, const RunPoint& start);

// run.dir/checkpoints, which may be a link to another disk, or what is there of the folders above it: it will be on the
// same disk.
std::filesystem::path checkpoint_disk(const std::filesystem::path& run_dir);

// Error(io) when nothing can be written in run.dir/checkpoints, or its disk has no room for one checkpoint more; a
// warning when it has none for `keep` of them and the one that is being written, or for those that are kept for good.
void check_disk_space(const std::filesystem::path& run_dir, const CheckpointSpace& space);

// The same for a run of this configuration, with checkpoints of so many bytes; nothing where it writes none.
template <class Config>
void check_disk_space(const Config& c, std::uint64_t bytes, const RunPoint& start) {
  if (c.checkpoint.every)
    check_disk_space(c.run.dir.value, plan_checkpoints(bytes, c.checkpoint, c.duration, c.batch.global, start));
}

}  // namespace millrace
