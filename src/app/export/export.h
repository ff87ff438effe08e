#pragma once
#include <filesystem>
#include <optional>
#include <string>

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
  bool allow_changes = false;                // a U-Net goes with parts that it was not trained with
  std::optional<std::string> pipeline = {};  // where the run's folder lies now; nothing = where it was
};

// The trained part (U-Net or VAE) from the checkpoint, everything else from the pipeline the run was started with.
// Prints which weights went where. Error(usage) where these are not the parts that a U-Net was trained with.
void export_checkpoint(const ExportRequest& request);

// `wanted`, or what `automatic` stands for. Error(usage) where that is an EMA which the checkpoint lacks; `key`: the
// setting, for the hint.
ExportRequest::Weights exported_weights(ExportRequest::Weights wanted, bool has_ema,
                                        const std::filesystem::path& checkpoint, const char* key);

// What a folder of the checkpoint is: a pipeline, or the VAE alone where the run's had no whole pipeline around it.
enum class ExportKind { pipeline, vae };
ExportKind export_kind(const CheckpointReader& checkpoint, const std::optional<std::string>& moved_pipeline = {});

// In the manifest of an autoencoder's checkpoint: of the weights that are exported by default, and of the raw ones
// where these are the EMA's.
inline constexpr const char* scaling_factor_key = "scaling_factor";
inline constexpr const char* scaling_factor_raw_key = "scaling_factor_raw";

// What latents of the checkpoint's VAE are multiplied by: as it was measured or chosen, else as its config.json says.
double scaling_factor_of(const CheckpointReader& checkpoint,
                         ExportRequest::Weights weights = ExportRequest::Weights::automatic);

}  // namespace millrace
