#pragma once
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "millrace/parallel/optim_config.h"
#include "millrace/parallel/sharded_model.h"
#include "run/session.h"
#include "run/train_plan.h"

// What a run says of itself before its first step.
namespace millrace {

// A line of such a table.
void print_start_row(const char* name, const std::string& text);

// Of a warm-up that is longer than the run. A run that is as long as a time may end in it, too: nobody knows.
std::optional<std::string> complaint_about_warmup(const OptimConfig& optim, const Duration& duration,
                                                  std::int64_t global_batch);

// Of trainers with one stripe more than others, for whom all wait.
std::optional<std::string> complaint_about_shares(const Routing& routing);

// Of producers that own one stripe more than others and set the pace for all, where fewer of them would do as much.
std::optional<std::string> complaint_about_producers(const Roles& roles, int stripes, int global_batch);

// One line for each part of the plan, and warnings about memory and the like.
void print_start_table(const Session& session, const TrainPlan& plan);

// The memory of a trainer's tensors as it follows from the shapes, for the size of micro-batches and the choice of
// machines.
void log_planned_memory(const TrainPlan& plan, const ShardedModel& model, torch::Device device);

}  // namespace millrace
