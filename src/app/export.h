#pragma once
#include <filesystem>
#include <optional>

#include "millrace/checkpoint/reader.h"

namespace millrace {

// From a checkpoint to a folder that diffusers loads.
struct ExportRequest {
  enum class Weights { automatic, ema, raw, both };  // automatic = ema where the run kept one
  CheckpointReader checkpoint;
  std::filesystem::path out;
  Weights weights = Weights::automatic;
  std::optional<double> scaling_factor = {};  // of a VAE; none = that of the run's pipeline
};

// The trained part (U-Net or VAE) from the checkpoint, everything else from the pipeline the run was started with.
// Prints which weights went where.
void export_checkpoint(const ExportRequest& request);

}  // namespace millrace
