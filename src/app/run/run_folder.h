#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "millrace/checkpoint/run_lease.h"
#include "millrace/dataset/manifest.h"
#include "run/resume.h"
#include "run/session.h"

// The folder of a run: opened before the work, and told what ends it.
namespace millrace {

// Opens run.dir for writing, which comes after everything was judged: a start that is refused, and a dry run, leave it
// as it is. Makes the folder and takes its lease; config.yaml (resolved), archives.tsv, STATE; fault files of an
// earlier start go. DONE stays until the first checkpoint of this start. `start`: where the run begins, by `resume`
// (checkpoint.resume). Collective; errors reach all.
RunLease open_run_folder(const Group& world, const std::filesystem::path& run_dir, const std::string& config_yaml,
                         const Manifest& archives, const Start& start, const std::string& resume);

// Runs a rank's part of a run whose folder is open. What it throws is written to RUN/fault, and to STATE where it ends
// the run, before the stack unwinds further. A rank that stands still for `hang_seconds` is named there too, and ends
// the run.
int run_in_folder(const Session& session, const std::filesystem::path& run_dir, const RunLease& lease,
                  const std::string& role, double hang_seconds, const std::function<int()>& part);

}  // namespace millrace
