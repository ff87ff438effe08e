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

// Warnings about settings that are allowed but probably not meant: a sentence each, or nothing.
namespace millrace {

// Logs a complaint, if there is one.
void warn(const std::optional<std::string>& complaint);

// A warm-up that is longer than the run, or takes more than a quarter of it; none if the warm-up is over `at` the
// start. Nothing for a run whose duration is a time: whether it ends in the warm-up is not known.
std::optional<std::string> complaint_about_warmup(const OptimConfig& optim, const Duration& duration,
                                                  std::int64_t global_batch, const RunPoint& at = {});

// An EMA that still holds more than a hundredth of random initial weights when the run, a new one, ends.
std::optional<std::string> complaint_about_ema(const TrainConfig& config);

// Captions in Parquet latents may have been dropped already, and the files do not say. For users who did not set
// objective.caption_dropout.
std::optional<std::string> complaint_about_captions(const EncodingPlan& encoding, const ObjectiveConfig& objective);

// Trainers that have one stripe more than others, so that all wait for them.
std::optional<std::string> complaint_about_shares(const Routing& routing);

// Producers that own one stripe more than others and set the pace for all, so that fewer of them would do as much.
std::optional<std::string> complaint_about_producers(const Roles& roles, int stripes, int global_batch);

// Ranks that only produce and have no GPU (empty in `gpu_of_rank`), while others have one.
std::optional<std::string> complaint_about_cpu_producers(const Roles& roles,
                                                         const std::vector<std::string>& gpu_of_rank);

// Sums of gradients over so many trainers that bfloat16 loses digits.
std::optional<std::string> complaint_about_sums(const ParallelConfig& config, const ShardPlan& plan,
                                                torch::Device device);

}  // namespace millrace
