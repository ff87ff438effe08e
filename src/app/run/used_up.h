#pragma once
#include <filesystem>
#include <vector>

#include "millrace/checkpoint/run_state.h"
#include "millrace/comm/group.h"
#include "run/start.h"

// RUN/rollback.json: the steps that a run left out when it went back to a checkpoint, for a restart from there. It
// matters until the next checkpoint.
namespace millrace {

// A disk that refuses the file is warned about.
void remember_used_up(const std::filesystem::path& run_dir, const CheckpointReader& checkpoint,
                      const std::vector<UsedUpSteps>& used_up);

// Replaces the used-up steps of a start by those that the file has for this very checkpoint, if it has any. Collective
// over `world`.
void read_used_up(const Group& world, const std::filesystem::path& run_dir, Start& start);

}  // namespace millrace
