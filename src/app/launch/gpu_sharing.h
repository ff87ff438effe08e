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

// GPUs that several ranks use.
struct GpuSharing {
  struct Crowded {
    int rank, with;  // who uses the same GPU, the first of them
  };
  int ranks_per_gpu = 1;  // at the most
  // Of hosts where ranks share a GPU, and on another with as many ranks of each role each has one: they have lost a
  // GPU, or see too few.
  std::vector<Crowded> crowded;
};
// `hosts`: of each rank.
GpuSharing judge_sharing(const std::vector<std::string>& uuids, const std::vector<std::string>& hosts,
                         const std::vector<int>& trainers);

// Error(suspect_node) that names these ranks and blames them: the next start does without their nodes.
[[noreturn]] void suspect_nodes_of(const World& world, const std::vector<int>& ranks, const std::string& what,
                                   const std::string& hint);

// All that for the ranks of a session. Error(suspect_node) where trainers are odd, or share a GPU on a host that has
// lost one, which blames these ranks; Error(usage) where they share one everywhere. Rank 0 warns. Collective.
void check_gpus(const Session& session, const std::vector<int>& trainers);

}  // namespace millrace
