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

// The one owner of a run folder. Two instances of a run happen: a node that was cut off is marked dead and the job is
// requeued while its ranks still write, or somebody starts the same command twice. RUN/LEASE names the owner (process,
// host, Slurm job and restart) and is renewed by rank 0 as long as it lives; whoever comes second waits until it knows
// whether the first one is alive.
class RunLease {
 public:
  // Takes the folder, which must exist. One that nobody renews any more, whose process is gone, or that the same Slurm
  // job held before it was requeued, is taken over. Error(usage) naming the owner when it lives, Error(requeue) when
  // it ends meanwhile. Collective; all ranks throw.
  static RunLease acquire(const Group& world, const std::filesystem::path& run_dir, LeaseTimes times = {});
  RunLease(RunLease&&) noexcept;
  ~RunLease();  // rank 0 gives it back

  // Of this owner alone, the same on all ranks: for names of temporary files.
  const std::string& nonce() const;
  // Looks at the file: false once another instance has taken the folder over, even if it has ended since. A file that
  // cannot be read says nothing against this one.
  bool is_ours() const;
  // What has become of a folder that is not ours any more, as far as that can be told.
  std::string why_lost() const;

 private:
  struct Impl;
  explicit RunLease(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace
