#pragma once
#include <filesystem>
#include <string>

#include "millrace/checkpoint/run_lease.h"
#include "millrace/comm/group.h"
#include "millrace/dataset/manifest.h"
#include "run/about.h"
#include "run/resume.h"

// A run's folder: who may write there, and what stands in it from the start.
namespace millrace {

// Opens run.dir for writing, which comes after everything was judged: a start that is refused, and a dry run, leave it
// as it is. Makes the folder and takes its lease; config.yaml (resolved), environment.json, template.yaml,
// archives.tsv, STATE; fault files of an earlier start go. DONE stays until the first checkpoint of this start.
// `start`: where the run begins, by `resume` (checkpoint.resume). Collective; errors reach all.
RunLease open_run_folder(const Group& world, const std::filesystem::path& run_dir, const RunDescription& description,
                         const Manifest& archives, const Start& start, const std::string& resume);

}  // namespace millrace
