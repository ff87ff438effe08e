#pragma once
#include <string>
#include <vector>

#include "run/session.h"

// Ranks of a node that use the same GPU: more ranks than GPUs, or a launcher that shows each rank all of them.
namespace millrace {

// `uuids`: of each rank's GPU, empty where there is none. Error(usage) where trainers share one, which NCCL does not
// join. Where others share one the result says so, a sentence for each GPU.
std::vector<std::string> judge_shared_gpus(const std::vector<std::string>& uuids, const std::vector<int>& trainers);

// `devices`: "cuda" or "cpu" of each rank. Trainers whose device is another than most trainers'; those without a GPU
// where there are as many of each.
std::vector<int> odd_devices(const std::vector<std::string>& devices, const std::vector<int>& trainers);

// Error(usage) where some trainers have a GPU and others none: they could not reduce a gradient together. Collective.
void check_same_devices(const Session& session, const std::vector<int>& trainers);

// The same for the ranks of a session; rank 0 warns. Collective.
void check_shared_gpus(const Session& session, const std::vector<int>& trainers);

}  // namespace millrace
