#pragma once
#include "run/run_memory.h"
#include "run/train_plan.h"

// How trainers cut their share of a step, and what batch.micro=auto stands for.
namespace millrace {

// Error(usage) when trainers with equal shares of a step cannot cut them into whole micro-batches; the message says
// which numbers would do. Where shares differ, a trainer's last micro-batch may be smaller, and some have one more of
// them.
void check_micro_batch(const Routing& routing, int global_batch, int micro_batch);

// The share of a device's memory that the plan of it may fill: the plan knows tensors, not how allocators and cuDNN's
// workspaces cut memory up, and on a CPU the node has other uses for it.
double usable_share(torch::Device device);

// The largest micro-batch of at most `fitting` images that check_micro_batch lets pass; where shares differ the
// smallest with which the largest share takes no more turns than with `fitting`.
int choose_micro_batch(const Routing& routing, int global_batch, int fitting);

// batch.micro, or for `auto` what suits the trainer with the least memory: the total, so that a run chooses the same
// again after a restart. Error(usage) where not even one image fits. Collective.
int plan_micro_batch(const Session& session, const TrainPlan& plan);

}  // namespace millrace
