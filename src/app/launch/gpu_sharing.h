#pragma once
#include <string>
#include <vector>

#include "launch/session.h"

// What each rank computes on: trainers of which some have lost their GPU, and ranks of a node that use the same one, as
// there are more ranks than GPUs, or a launcher shows each rank all of them.
namespace millrace {

// `uuids`: of each rank's GPU, empty where there is none. Error(usage) where trainers share one, which NCCL does not
// join. Where others share one the result says so, a sentence for each GPU.
std::vector<std::string> judge_shared_gpus(const std::vector<std::string>& uuids, const std::vector<int>& trainers);

// Trainers with a GPU among trainers that mostly have none, or the other way round; those without one where there are
// as many of each. They could not reduce a gradient together.
std::vector<int> odd_devices(const std::vector<std::string>& uuids, const std::vector<int>& trainers);

// Both for the ranks of a session: Error(usage) where there are odd ones, too; rank 0 warns. Collective.
void check_gpus(const Session& session, const std::vector<int>& trainers);

}  // namespace millrace
