#pragma once
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app_config.h"
#include "millrace/core/units.h"
#include "millrace/parallel/optim_config.h"
#include "millrace/parallel/shard_plan.h"
#include "millrace/produce/encoding_plan.h"
#include "train/roles.h"
#include "train/routing.h"

// Settings that are allowed and probably not meant: a sentence about each, or nothing.
namespace millrace {

// Logs a complaint, where there is one.
void warn(const std::optional<std::string>& complaint);

// Of a warm-up that is longer than the run, or takes more than a quarter of it; of none that is over `at` the start. A
// run that is as long as a time may end in it, too: nobody knows.
std::optional<std::string> complaint_about_warmup(const OptimConfig& optim, const Duration& duration,
                                                  std::int64_t global_batch, const RunPoint& at = {});

// Of an EMA that still holds more than a hundredth of random initial weights when the run, a new one, ends.
std::optional<std::string> complaint_about_ema(const TrainConfig& config);

// Of captions that are dropped where they may have been dropped already: nothing tells of Parquet files. For who has
// not chosen objective.caption_dropout.
std::optional<std::string> complaint_about_captions(const EncodingPlan& encoding, const ObjectiveConfig& objective);

// Of trainers with one stripe more than others, for whom all wait.
std::optional<std::string> complaint_about_shares(const Routing& routing);

// Of producers that own one stripe more than others and set the pace for all, where fewer of them would do as much.
std::optional<std::string> complaint_about_producers(const Roles& roles, int stripes, int global_batch);

// Of ranks that only produce and have no GPU (empty in `gpu_of_rank`), beside others that have one.
std::optional<std::string> complaint_about_cpu_producers(const Roles& roles,
                                                         const std::vector<std::string>& gpu_of_rank);

// Of sums over so many trainers that bfloat16 loses digits.
std::optional<std::string> complaint_about_sums(const ParallelConfig& config, const ShardPlan& plan,
                                                torch::Device device);

}  // namespace millrace
