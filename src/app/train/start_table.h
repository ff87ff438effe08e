#pragma once
#include <string>

#include "launch/session.h"
#include "millrace/parallel/optim_config.h"
#include "train/train_plan.h"

// What a run says about itself before its first step.
namespace millrace {

// A line of such a table.
void print_start_row(const char* name, const std::string& text);

// "AdamW lr 0.0001 wd 0.01, warm-up 10000 steps, cosine, clip 1"; "0.9999 with warm-up"; "epsilon, caption drop 0.1".
// What is off or constant is left out.
std::string describe(const OptimConfig& optim);
std::string describe(const EmaConfig& ema);
std::string describe(const ObjectiveConfig& objective);

// One line for each part of the plan, and warnings about memory and the like.
void print_start_table(const Session& session, const TrainPlan& plan);

// Logs the memory of a trainer's tensors as it follows from the shapes, which helps to choose micro-batches and
// machines, and what its device has; a warning if that is less.
void log_planned_memory(const Session& session, const TrainPlan& plan);

}  // namespace millrace
