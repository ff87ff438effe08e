#pragma once
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>

#include "launch/session.h"
#include "millrace/checkpoint/run_lease.h"
#include "millrace/comm/watchdog.h"
#include "millrace/core/error.h"

// Records in the run's folder what ends a run.
namespace millrace {

// From now on a rank whose own node fails is named in RUN/fault, so that the next start leaves the node out. Called
// before devices are looked at, and before the folder is this run's: a second run that was started on the folder by
// mistake may name one of its nodes there, too.
void report_faults_to(const World& world, const std::filesystem::path& run_dir);

// The role of a rank of the run: "producer".
using RoleOfRank = std::function<std::string(int rank)>;

// Ends the run when a rank stands still (NOTE [Watchdog]), from planning and loading on, and names it: on the screen,
// and while a folder is open in its RUN/fault and STATE.
class RunWatch {
 public:
  // Collective.
  RunWatch(const World& world, double hang_seconds);

  // The folder is open while this object lives.
  class InFolder {
   public:
    InFolder(RunWatch& watch, std::filesystem::path run_dir, const RunLease& lease, RoleOfRank role_of);
    ~InFolder();
    InFolder(const InFolder&) = delete;
    InFolder& operator=(const InFolder&) = delete;

    const std::filesystem::path run_dir;
    const RunLease& lease;
    const RoleOfRank role_of;

   private:
    RunWatch& watch_;
  };

 private:
  void open(const InFolder* folder);
  void end_hung_run(const Suspect& suspect);

  std::mutex mutex_;
  const InFolder* folder_ = nullptr;
  Watchdog watchdog_;  // destroyed first, since its thread uses the rest
};

// What RunWatch writes about a hang: to STATE, and to RUN/fault if a single host is suspect. `role`: the suspect's.
void tell_folder(const std::filesystem::path& run_dir, const Suspect& suspect, const std::string& role,
                 const Error& error);

// Runs a rank's part of a run whose folder is open. What it throws is written to RUN/fault, and to STATE if it ends the
// run, before the stack unwinds further. A rank that hangs is named there too.
int run_in_folder(const Session& session, const std::filesystem::path& run_dir, const RunLease& lease,
                  const RoleOfRank& role_of, RunWatch& watch, const std::function<int()>& part);

}  // namespace millrace
