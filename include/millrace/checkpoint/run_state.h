#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "millrace/checkpoint/cadence.h"
#include "millrace/dataset/sample.h"

namespace millrace {

// What the guard knows of the losses so far.
struct LossHistory {
  std::int64_t steps = 0;  // judged and not skipped
  double mean = 0, variance = 0;
  int skips_in_a_row = 0;
  std::int64_t first_skip = 0;  // step of the first of these
  std::string of;               // digest of the settings that decide what a usual loss is

  bool operator==(const LossHistory&) const = default;
};

struct StepRange {
  std::int64_t first = 0, last = 0;

  bool contains(std::int64_t step) const { return first <= step && step <= last; }
  bool operator==(const StepRange&) const = default;
};

// Steps whose batches are used up without an update, because they were bad the first time.
struct UsedUpSteps : StepRange {
  std::int64_t checkpoint = 0;  // step of the one that training went back to because of them

  bool operator==(const UsedUpSteps&) const = default;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(UsedUpSteps, first, last, checkpoint)

// Everything about a run that is not a tensor: with the tensors of a checkpoint it is all that a restart needs.
struct RunState {
  std::int64_t step = 0;     // optimizer steps taken
  std::int64_t samples = 0;  // samples used
  std::int64_t skipped = 0;  // steps whose update was left out
  std::int64_t updates = 0;  // Adam's own count of steps
  std::int64_t ema_updates = 0;
  double seconds = 0;  // spent in training, over all restarts
  LossHistory losses;
  std::vector<UsedUpSteps> used_up;
  StripeCursors cursors;  // of all stripes; empty at step 0
  std::string ledger;     // Ledger::state_json, on rank 0 of the trainers; not part of to_json

  RunPoint point() const { return {step, samples, seconds}; }

  nlohmann::json to_json() const;
  static RunState from_json(const nlohmann::json& json);
  bool is_used_up(std::int64_t step) const;
};

// {"STRIPE": [epoch, split, row, given]}
nlohmann::json to_json(const StripeCursors& cursors);
StripeCursors cursors_from_json(const nlohmann::json& json);

// Error(bug) unless all `stripes` cursors moved forward between two checkpoints, as they do because every step takes
// samples of every stripe. Otherwise a resume would repeat samples or leave some out.
void check_all_moved(const StripeCursors& before, const StripeCursors& after, std::uint32_t stripes);

}  // namespace millrace
