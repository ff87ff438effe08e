#pragma once
#include <filesystem>
#include <string>

#include "millrace/checkpoint/run_lease.h"
#include "millrace/comm/group.h"
#include "millrace/core/units.h"
#include "millrace/dataset/manifest.h"
#include "run/resume.h"
#include "run/run_description.h"

// A run's folder: who may write there, and what stands in it from the start.
namespace millrace {

// Makes the folder and its log/, and takes its lease. Collective; errors reach all.
RunLease claim_run_folder(const Group& world, const std::filesystem::path& run_dir);

// Opens run.dir for writing, which comes after everything was judged: a start that is refused, and a dry run, leave it
// as it is. Claims the folder and writes config.yaml (resolved), environment.json, template.yaml, archives.tsv, STATE.
// DONE stays until the first checkpoint of this start.
// `start`: where the run begins, by `resume` (checkpoint.resume). Collective; errors reach all.
RunLease open_run_folder(const Group& world, const std::filesystem::path& run_dir, const RunDescription& description,
                         const Manifest& archives, const Start& start, const std::string& resume);

// Of a start from a checkpoint that has reached the duration. Whether another run is at its end is nothing that this
// one's folder could say: Error(usage) where the checkpoint is not in run.dir. Collective.
void refuse_end_of_another_run(const Group& world, const std::filesystem::path& run_dir, const Start& start,
                               const Duration& duration);
// Says so, also in STATE and DONE where a life was killed before it could. What such a life has left goes, under the
// lease, since another instance may still be at work; any other folder is left as it is. Collective; errors reach all.
void finish_without_training(const Group& world, const std::filesystem::path& run_dir, const Start& start,
                             const Duration& duration);

}  // namespace millrace
