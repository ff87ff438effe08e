#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "millrace/checkpoint/run_lease.h"
#include "millrace/checkpoint/run_state.h"
#include "millrace/comm/group.h"
#include "millrace/comm/world.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/ledger.h"
#include "millrace/parallel/sharded_model.h"
#include "millrace/parallel/sharded_optimizer.h"
#include "millrace/train/balance.h"
#include "millrace/train/picture_painter.h"
#include "millrace/train/progress.h"
#include "millrace/train/task.h"
#include "millrace/train/train_config.h"
#include "millrace/train/validation.h"

namespace millrace {

// Everything the loop works with; the same on every trainer but for the shards and the samples.
struct TrainerContext {
  Task& task;
  ShardedModel& model;
  ShardedAdamW& optimizer;
  Group trainers;
  const LoopConfig& config;
  const OptimConfig& optim;
  const DataPlan& data;
  double max_bad_share;
  torch::Device device;
  nlohmann::json manifest_extra;  // goes into every checkpoint's manifest
  double hang_seconds;            // guard.hang_timeout: for samples, and of trainers for each other (pace.h)
  std::function<void(const Overdue&, const Error&)> on_silent_producer = {};
  std::vector<RankOnHost> trainer_ranks = {}, producer_ranks = {};  // of the whole run
  std::string gpu_uuid = {};                                        // of this trainer's GPU, for NVML; empty = none
  const RunLease* lease = nullptr;
  std::optional<std::string> resumed_from = {};  // checkpoint
  Validation* validation = nullptr;
  PicturePainter* painter = nullptr;
  bool cuda_graphs = false;
  // What only the present weights tell, for a checkpoint's manifest. Collective over the trainers.
  std::function<nlohmann::json()> measure = {};
};

struct LoopResult {
  bool finished = false;  // the duration was reached
  std::string reason;     // else: what asked for the stop
  // Too many in a row: training is to go back to before them; `checkpoint` is not known yet.
  std::optional<UsedUpSteps> bad;
  std::optional<Error> failure;  // that ended the run after its state was saved; the same on all trainers
  RunState state;
  std::optional<std::string> checkpoint;  // the last one, when there is one
  bool is_saved = false;                  // it holds `state`
  // Of these steps: means over all but the first, loss and gradient norm over the last interval.
  Metrics totals;
  RoleCounts roles;
};

// Trains from `state` until the duration is reached, a signal or the time limit asks to stop, or a producer fails or
// falls silent; either way the last step is saved. Steps that make it go back are not, and the result says which. The
// order of a step: agreement that all have their batch, forward and backward per micro-batch, which reduces gradients,
// totals over all ranks, update or skip, account, save.
LoopResult run_loop(TrainerContext context, RunState state);

}  // namespace millrace
