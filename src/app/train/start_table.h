#pragma once
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "launch/session.h"
#include "millrace/parallel/optim_config.h"
#include "millrace/parallel/sharded_model.h"
#include "train/train_plan.h"

// What a run says of itself before its first step.
namespace millrace {

// A line of such a table.
void print_start_row(const char* name, const std::string& text);

// Logs a complaint, where there is one.
void warn(const std::optional<std::string>& complaint);

// "AdamW lr 0.0001 wd 0.01, warm-up 10000 steps, cosine, clip 1"; "0.9999 with warm-up"; "epsilon, caption drop 0.1".
// What is off or constant has no word.
std::string describe(const OptimConfig& optim);
std::string describe(const EmaConfig& ema);
std::string describe(const ObjectiveConfig& objective);

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

// One line for each part of the plan, and warnings about memory and the like.
void print_start_table(const Session& session, const TrainPlan& plan);

// The memory of a trainer's tensors as it follows from the shapes, for the size of micro-batches and the choice of
// machines; and what its device has, with a warning where that is less.
void log_planned_memory(const Session& session, const TrainPlan& plan, const ShardedModel& model);

}  // namespace millrace
