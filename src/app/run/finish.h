#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "millrace/checkpoint/run_lease.h"
#include "millrace/comm/group.h"
#include "millrace/train/loop.h"

namespace millrace {

// The end of a trainer's part. Rank 0 writes STATE and DONE, and prints what was reached, who waited for whom, and what
// to do next: `next_command`, asked when the run is finished and all that is written, else the same command, which
// would begin again where checkpoint.resume (`resume`, or what was typed in its place) says. Then what ended the run is
// thrown on all trainers. Returns the exit code.
int finish_run(const Group& trainers, const std::filesystem::path& run_dir, const RunLease& lease,
               const LoopResult& result, const std::string& resume, const std::function<std::string()>& next_command);

// The last lines of a dry run, after the start-up table: nothing was written, and what the run `would` do.
void print_dry_run(const std::filesystem::path& run_dir, const std::string& would);

}  // namespace millrace
