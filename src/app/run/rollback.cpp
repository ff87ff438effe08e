#include "run/rollback.h"

#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/train/state_file.h"
#include "run/resume.h"
#include "run/used_up.h"

namespace millrace {
namespace {

std::string describe(const StepRange& steps) {
  return steps.first == steps.last ? fmt::format("step {}", steps.first)
                                   : fmt::format("steps {} to {}", steps.first, steps.last);
}

constexpr const char* cure = "a lower optim.lr or float32 (model.dtype) are the usual cures";

// Of one that was put aside (step-N.abandoned-*): what stands before it may be of another time.
void refuse_abandoned(const CheckpointReader& checkpoint, const StepRange& bad) {
  if (place_of_checkpoint(checkpoint.path()).filename() == step_name(checkpoint.state().step)) return;
  throw Error(
      Exit::numerics,
      fmt::format("{} were bad, and {} has no known checkpoint before them", describe(bad), checkpoint.path().string()),
      "start from an earlier checkpoint of the same time, by checkpoint.resume");
}

// Training from there has been tried, or would begin with the weights that could not go on.
void refuse_same_place(const std::vector<UsedUpSteps>& before, const StepRange& bad, std::int64_t checkpoint) {
  if (before.empty()) return;
  const auto& last = before.back();
  if (checkpoint > last.checkpoint && bad.first > last.last + 1) return;
  throw Error(Exit::numerics,
              fmt::format("{} are bad, after training had gone back to {} and left out {}: once more would not help",
                          describe(bad), step_name(last.checkpoint), describe(last)),
              cure);
}

}  // namespace

Start roll_back(const Group& world, const OwnedRunFolder& run, const Start& from, const StepRange& bad, bool has_saved,
                const std::vector<int>& trainers) {
  const bool was_bad_already = from.state.step >= bad.first;  // it stopped there, and saved
  Start start{.identity = from.identity, .checkpoint = from.checkpoint};
  if (has_saved) {
    start.checkpoint = find_checkpoint(run.path, world, bad.first, trainers);
  } else if (was_bad_already) {
    on_root(world, [&] { refuse_abandoned(*from.checkpoint, bad); });
    start.checkpoint = find_checkpoint(run_of_checkpoint(from.checkpoint->path()), world, bad.first, trainers);
  }
  const auto used_up = broadcast_from_root(world, [&] {
    if (!start.checkpoint)
      throw Error(Exit::numerics,
                  fmt::format("{} were bad, and there is no checkpoint from before them", describe(bad)), cure);
    if (!run.lease->is_ours()) fail(Exit::requeue, "{}", run.lease->why_lost());
    const auto state = start.checkpoint->state();
    refuse_same_place(from.state.used_up, bad, state.step);
    auto steps = resume_state(*start.checkpoint, start.identity).used_up;
    steps.push_back({{bad.first, bad.last}, state.step});
    log::warning("going back to {}; {} will be left out", start.checkpoint->path().string(), describe(bad));
    remember_used_up(run.path, *start.checkpoint, steps);
    StateFile(run.path, run.lease).update(RunStatus::running, state.point(), start.path(), "");
    return nlohmann::json(steps).dump();
  });
  start.state = resume_state(*start.checkpoint, start.identity);
  nlohmann::json::parse(used_up).get_to(start.state.used_up);
  return start;
}

}  // namespace millrace
