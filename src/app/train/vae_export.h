#pragma once
#include <filesystem>

#include "millrace/checkpoint/reader.h"

// Exports the trained VAE of a run for other tools, to RUN/pipeline, and tells whether what lies there is this
// program's work.
namespace millrace {

std::filesystem::path export_of(const std::filesystem::path& run_dir);

// Whether the run is done, and the export is of this checkpoint: training may have gone back to an older one. Also if
// the checkpoint is another run's, of which nothing goes here. Call after check_export_folder.
bool holds_the_end(const std::filesystem::path& run_dir, const std::filesystem::path& checkpoint);

// Error(usage) if `pipeline`, which the run begins with, lies where the export goes, or something is there that the run
// did not write.
void check_export_folder(const std::filesystem::path& run_dir, const std::filesystem::path& pipeline);

// Writes the export; call it under the lease. What was there before stays until the new folder is complete; if it is
// not an export of this run, or files were added to it, it is kept for good under another name.
void export_vae(const CheckpointReader& checkpoint, const std::filesystem::path& run_dir);

}  // namespace millrace
