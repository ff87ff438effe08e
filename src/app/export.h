#pragma once
#include <filesystem>
#include <optional>

#include "millrace/checkpoint/reader.h"

namespace millrace {

// From a checkpoint to a folder that diffusers loads, or to one file (models/ldm_export.h).
struct ExportRequest {
  enum class Format { diffusers, ldm };
  enum class Weights { automatic, ema, raw, both };  // automatic = ema where the run kept one
  CheckpointReader checkpoint;
  std::filesystem::path out;
  Weights weights = Weights::automatic;
  Format format = Format::diffusers;
  std::optional<double> scaling_factor = {};  // of a VAE; none = that of the run's pipeline
};

// The trained part (U-Net or VAE) from the checkpoint, everything else from the pipeline the run was started with.
// Prints which weights went where.
void export_checkpoint(const ExportRequest& request);

}  // namespace millrace
