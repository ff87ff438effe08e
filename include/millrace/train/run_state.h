#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "millrace/data/sample.h"

namespace millrace {

// Everything about a run that is not a tensor: with the tensors of a checkpoint it is all that a restart needs.
struct RunState {
  std::int64_t step = 0;     // optimizer steps taken
  std::int64_t samples = 0;  // samples used
  std::int64_t skipped = 0;  // steps whose update was left out
  std::int64_t updates = 0;  // Adam's own count
  std::int64_t ema_updates = 0;
  double seconds = 0;                             // spent in training, over all restarts
  std::map<std::uint32_t, StripeCursor> cursors;  // of stripes that have given a sample
  nlohmann::json ledger;                          // of all producers

  nlohmann::json to_json() const;
  static RunState from_json(const nlohmann::json& json);
};

}  // namespace millrace
