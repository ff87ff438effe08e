#pragma once
#include <torch/types.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "millrace/checkpoint/run_lease.h"
#include "millrace/comm/group.h"
#include "millrace/comm/world.h"
#include "millrace/core/error.h"
#include "millrace/loader/data_plan.h"
#include "millrace/parallel/sharded_model.h"
#include "millrace/parallel/sharded_optimizer.h"
#include "millrace/train/balance.h"
#include "millrace/train/picture_painter.h"
#include "millrace/train/task.h"
#include "millrace/train/train_config.h"
#include "millrace/train/validation.h"

namespace millrace {

// What the loop works with; the same on every trainer except for shards, samples and GPU.
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
  std::function<void(const Overdue&, const Error&)> on_silent_producer = {};
  std::vector<RankOnHost> trainer_ranks = {}, producer_ranks = {};  // of the whole run
  std::string gpu_uuid = {};                                        // of this trainer's GPU, for NVML; empty = none
  const RunLease* lease = nullptr;
  std::optional<std::string> resumed_from = {};  // path of a checkpoint
  Validation* validation = nullptr;
  PicturePainter* painter = nullptr;
  bool cuda_graphs = false;
  // Entries of a checkpoint's manifest that depend on the present weights. Collective over the trainers.
  std::function<nlohmann::json()> measure = {};

  bool is_root() const { return trainers.is_root(); }
  RoleCounts roles() const;
};

}  // namespace millrace
