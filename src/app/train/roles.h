#pragma once
#include <string>
#include <vector>

namespace millrace {

struct RolesConfig;

// Who does what. With `all_in_one` every rank trains and produces for itself.
struct Roles {
  std::vector<int> trainers, producers;  // world ranks
  bool all_in_one = false;

  bool trains(int rank) const;
  bool produces(int rank) const;
};

// A pure function of the GPU names of all ranks ("" = none) and the configuration. Error(usage) when it cannot be done.
Roles plan_roles(const std::vector<std::string>& gpu_of_rank, const RolesConfig& config);

// Ranks without a GPU if roles go by its name and others have one: theirs must have failed. With roles.producer_gpu
// alone only if another rank has a GPU to train on; with roles.trainer_gpu alone none, since ranks without a GPU may be
// meant to produce.
std::vector<int> ranks_that_lost_a_gpu(const std::vector<std::string>& gpu_of_rank, const RolesConfig& config);

// The first `ranks` ranks, each of which trains and produces.
Roles all_in_one_roles(int ranks);

// Whether `rank` is the first of `ranks` on its host. `hosts`: of every rank of the world.
bool is_first_on_host(const std::vector<int>& ranks, const std::vector<std::string>& hosts, int rank);

// The position of `value` in the list; the length of the list if it is not there.
int position_in(const std::vector<int>& list, int value);
std::vector<int> pick(const std::vector<int>& values, const std::vector<int>& positions);

// "trainer", "producer" or "trainer and producer".
std::string role_name(const Roles& roles, int rank);

// Numbers in ascending order as runs: "0-23 25"; of many runs the first: "0-3 8-11 ... (512 in all)".
std::string describe_numbers(const std::vector<int>& numbers);
// "every rank trains and produces", or "trainers 0-1, producers 2": for the start-up table.
std::string describe(const Roles& roles);
// "n0, n1", each once, or "125 hosts"; `hosts`: of every rank.
std::string describe_hosts(const std::vector<std::string>& hosts);

}  // namespace millrace
