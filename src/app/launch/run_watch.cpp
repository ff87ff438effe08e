#include "launch/run_watch.h"

#include <utility>

#include "millrace/comm/collectives.h"
#include "millrace/comm/fault.h"
#include "millrace/core/leave.h"
#include "millrace/core/run_files.h"
#include "millrace/core/stacks.h"
#include "millrace/nn/gpu_watch.h"
#include "millrace/train/state_file.h"

namespace millrace {

void report_faults_to(const World& world, const std::filesystem::path& run_dir) {
  fault::report_to({run_dir, world.rank(), world.host(), /*role=*/""});
}

RunWatch::RunWatch(const World& world, double hang_seconds)
    : watchdog_(world, hang_seconds, [this](const Suspect& suspect) { end_hung_run(suspect); }) {}

RunWatch::InFolder::InFolder(RunWatch& watch, std::filesystem::path run_dir, const RunLease& lease, RoleOfRank role_of)
    : run_dir(std::move(run_dir)), lease(lease), role_of(std::move(role_of)), watch_(watch) {
  watch_.open(this);
}

RunWatch::InFolder::~InFolder() {
  watch_.open(nullptr);
}

void RunWatch::open(const InFolder* folder) {
  const std::lock_guard turn(mutex_);
  folder_ = folder;
}

void tell_folder(const std::filesystem::path& run_dir, const Suspect& suspect, const std::string& role,
                 const Error& error) {
  // The file would cost the suspect's host its place in the next start.
  if (!suspect.is_one_of_many)
    fault::write_about({run_dir, suspect.rank, suspect.host, role}, error, suspect.phase.c_str(), suspect.step);
  StateFile(run_dir).write_failed(error);
}

// No stack is unwound and no MPI is called: the thread that could do so may be the one that hangs.
void RunWatch::end_hung_run(const Suspect& suspect) {
  const std::lock_guard turn(mutex_);
  const auto stacks = folder_ ? fmt::format("stacks of the ranks that could write them: {}",
                                            (folder_->run_dir / run_file::log / "stacks-rank-*.txt").string())
                              : "the run's folder was not open yet";
  const auto of_nccl = last_words_of_devices();
  const Error error(Exit::suspect_node,
                    fmt::format("{}; {}{}", suspect.what, stacks,
                                of_nccl.empty() ? "" : fmt::format("; NCCL said last, to this rank: {}", of_nccl)),
                    fmt::format("the same command continues from what was saved last{}. guard.hang_timeout is the "
                                "longest that a rank may stand still in a step",
                                suspect.is_one_of_many ? "" : "; leave that host out if it hangs again"));
  const auto why = fmt::format("{}\n  hint: {}", error.what(), error.hint());
  leave_within(30, Exit::suspect_node, why);  // run.dir may be what hangs
  if (folder_ && folder_->lease.is_ours())
    tell_folder(folder_->run_dir, suspect, folder_->role_of(suspect.rank), error);
  leave_within(0, Exit::suspect_node, why);
}

int run_in_folder(const Session& session, const std::filesystem::path& run_dir, const RunLease& lease,
                  const RoleOfRank& role_of, RunWatch& watch, const std::function<int()>& part) {
  const auto& world = session.world;
  fault::report_to({run_dir, world.rank(), world.host(), role_of(world.rank()), gpu_uuid(session.device)});
  stacks::write_to(run_dir / run_file::log / ("stacks-" + rank_name(world.rank()) + ".txt"),
                   fmt::format("rank {} on {}", world.rank(), world.host()));
  const RunWatch::InFolder open(watch, run_dir, lease, role_of);
  try {
    return part();
  } catch (...) {
    fault::begin_leaving();
    if (fault::speaks_for_run()) StateFile(run_dir, &lease).write_failed(present_error());
    throw;
  }
}

}  // namespace millrace
