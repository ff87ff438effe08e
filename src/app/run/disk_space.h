#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>

// Whether a run's checkpoints fit on its disk.
namespace millrace {

// Bytes of a checkpoint of this model: weights, moments and, where it is kept, EMA in float32.
std::uint64_t checkpoint_bytes(const torch::nn::Module& model, bool ema);

// run.dir/checkpoints, which may be a link to another disk, or what is there of the folders above it: it will be on the
// same disk.
std::filesystem::path checkpoint_disk(const std::filesystem::path& run_dir);

// Error(io) when the disk of run.dir/checkpoints has no room for one checkpoint more; a warning when it has none for
// `keep` of them and the one that is being written.
void check_disk_space(const std::filesystem::path& run_dir, std::uint64_t checkpoint_bytes, int keep);

}  // namespace millrace
