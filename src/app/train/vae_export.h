#pragma once
#include <filesystem>

#include "millrace/checkpoint/reader.h"

// The trained VAE of a run, for other tools: RUN/pipeline, and what tells whether it is this program's work.
namespace millrace {

std::filesystem::path export_of(const std::filesystem::path& run_dir);

// Whether all was trained, and what lies in the export's place is of this checkpoint: training may have gone back to an
// older one. Behind check_export_folder.
bool holds_the_end(const std::filesystem::path& run_dir, const std::filesystem::path& checkpoint);

// What the run begins with, and what it did not write, must not be in the way of what it will write: Error(usage).
void check_export_folder(const std::filesystem::path& run_dir, const std::filesystem::path& pipeline);

// Weights for other tools; under the lease. What was there before stays until all of the new folder is, and what is not
// an export of this run, or has got something since, stays for good.
void export_vae(const CheckpointReader& checkpoint, const std::filesystem::path& run_dir);

}  // namespace millrace
