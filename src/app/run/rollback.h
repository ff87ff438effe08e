#pragma once
#include <filesystem>

#include "millrace/checkpoint/run_lease.h"
#include "millrace/checkpoint/run_state.h"
#include "millrace/comm/group.h"
#include "run/start.h"

// guard.on_repeat=rollback: a run goes back, in the same processes, to before steps that were bad, and leaves them out.
namespace millrace {

struct OwnedRunFolder {
  const std::filesystem::path& path;
  const RunLease* lease;
};

// The start from the newest good checkpoint before the `bad` steps, with these among its state's used-up ones, which
// RUN/rollback.json keeps for a restart from that checkpoint. Where this training has saved none (`has_saved` is
// false), newer checkpoints in the folder belong to a history that is not continued, so it returns to `from`, the start
// of this training, or, where the bad steps began before `from`, to one of the run that has made that.
// Error(numerics) on all ranks where there is nothing to go back to, or where `from` had gone back to the same place
// before; Error(requeue) where another instance has taken the folder. Collective over `world`.
Start roll_back(const Group& world, const OwnedRunFolder& run, const Start& from, const StepRange& bad, bool has_saved,
                const std::vector<int>& trainers);

}  // namespace millrace
