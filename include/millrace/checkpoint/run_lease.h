#pragma once
#include <filesystem>
#include <memory>
#include <string>

#include "millrace/comm/group.h"

namespace millrace {

// Seconds.
struct LeaseTimes {
  double renewed_every = 5;
  double stale_after = 60;
};

// Makes sure that a run folder has one owner. Two instances of a run do occur: a node that was cut off is marked dead
// and the job is requeued while its ranks still write, or somebody starts the same command twice. RUN/LEASE names the
// owner (process, host, Slurm job and restart) and is renewed by rank 0 as long as it lives; whoever comes second waits
// until it knows whether the first one is alive.
class RunLease {
 public:
  // Takes the folder, which must exist. It is taken over if its owner no longer renews the lease or its process is
  // gone, or if the same Slurm job held it before it was requeued. Error(usage) naming the owner if it is alive,
  // Error(requeue) if it ends meanwhile. Collective; all ranks throw.
  static RunLease acquire(const Group& world, const std::filesystem::path& run_dir, LeaseTimes times = {});
  RunLease(RunLease&&) noexcept;
  ~RunLease();  // rank 0 gives it back

  // Unique to this owner, the same on all ranks: for names of temporary files.
  const std::string& nonce() const;
  // Reads the file: false once another instance has taken the folder over, even if that has ended since. True if it
  // cannot be read.
  bool is_ours() const;
  // What has become of a folder that is no longer ours, as far as that can be told.
  std::string why_lost() const;

 private:
  struct Impl;
  explicit RunLease(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace
