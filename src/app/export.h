#pragma once
#include <filesystem>

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
};

// The trained part (U-Net or VAE) from the checkpoint, everything else from the pipeline the run was started with.
// Prints which weights went where.
void export_checkpoint(const ExportRequest& request);

// What a folder of the checkpoint is: a pipeline, or the VAE alone where the run's had no whole pipeline around it.
enum class ExportKind { pipeline, vae };
ExportKind export_kind(const CheckpointReader& checkpoint);

inline constexpr const char* scaling_factor_key = "scaling_factor";  // in the manifest of an autoencoder's checkpoint

// What latents of the checkpoint's VAE are multiplied by: as it was measured, else as its config.json says.
double scaling_factor_of(const CheckpointReader& checkpoint);

}  // namespace millrace
