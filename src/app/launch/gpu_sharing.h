#pragma once
#include <string>
#include <vector>

#include "launch/session.h"

// Checks what each rank computes on: some trainers may have lost their GPU, and ranks of a node may use the same one,
// because there are more ranks than GPUs or a launcher shows every rank all of them.
namespace millrace {

// `uuids`: of each rank's GPU, empty if it has none. Error(usage) if trainers share one, which NCCL does not allow.
// Otherwise returns a sentence about each GPU that several ranks use.
std::vector<std::string> judge_shared_gpus(const std::vector<std::string>& uuids, const std::vector<int>& trainers);

// Trainers that have a GPU while most have none, or the other way round; those without one if there are as many of
// each. They could not reduce a gradient together.
std::vector<int> odd_devices(const std::vector<std::string>& uuids, const std::vector<int>& trainers);

// GPUs that several ranks use.
struct GpuSharing {
  struct Crowded {
    int rank, with;  // with: the first rank that uses the same GPU
  };
  int ranks_per_gpu = 1;  // at the most
  // Ranks that share a GPU on a host, although on another host with as many ranks of each role each rank has its own:
  // they have lost a GPU, or see too few.
  std::vector<Crowded> crowded;
};
// `hosts`: of each rank.
GpuSharing judge_sharing(const std::vector<std::string>& uuids, const std::vector<std::string>& hosts,
                         const std::vector<int>& trainers);

// Throws Error(suspect_node) that names these ranks and blames them, so that the next start does without their nodes.
[[noreturn]] void suspect_nodes_of(const World& world, const std::vector<int>& ranks, const std::string& what,
                                   const std::string& hint);

// All of these checks, for the ranks of a session. Error(suspect_node) if trainers are odd, or share a GPU on a host
// that has lost one, which blames these ranks; Error(usage) if they share one everywhere. Rank 0 logs warnings.
// Collective.
void check_gpus(const Session& session, const std::vector<int>& trainers);

}  // namespace millrace
