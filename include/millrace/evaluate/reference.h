#pragma once
#include <torch/types.h>

#include <filesystem>
#include <optional>

#include "millrace/evaluate/statistics.h"

namespace millrace {

// What pictures are compared with.
struct FeatureReference {
  std::optional<torch::Tensor> features;  // f32 (N, D); KID needs them
  FeatureStatistics statistics;
};

// Of an .npz file with mu and sigma or with `feats` (N, D), or of .safetensors with `features` (N, D). Error(io) naming
// the file and what is wrong with it.
FeatureReference read_reference_file(const std::filesystem::path& file);

}  // namespace millrace
