#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "millrace/checkpoint/reader.h"
#include "millrace/checkpoint/run_state.h"
#include "run/identity.h"

namespace millrace {

// Where a run begins.
struct Start {
  RunIdentity identity = {};                        // of the run, in every checkpoint
  std::optional<CheckpointReader> checkpoint = {};  // to continue from; nothing for step 0
  RunState state = {};
  // On rank 0 alone: the step of the newest checkpoint in the run's folder, also where it was passed over as damaged.
  std::int64_t newest_there = 0;

  // The checkpoint's folder, for STATE.
  std::optional<std::string> path() const {
    return checkpoint ? std::optional(checkpoint->path().string()) : std::nullopt;
  }
};

}  // namespace millrace
