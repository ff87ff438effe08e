#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "train/roles.h"

namespace millrace {

// Assigns stripes to trainers and producers. Trainer t has every stripe s with s T / S == t (rounded down), a run of
// consecutive stripes; no trainer has two more than another. Producer p has every stripe s with s % P == p; with
// `all_in_one` each rank produces its own run of stripes.
struct Routing {
  std::vector<int> trainer_of_stripe, producer_of_stripe;  // positions in Roles
  int trainers() const;
  bool is_even() const;  // all trainers have equally many stripes
  // The most samples that one trainer has of a step.
  int largest_share(int global_batch) const;
  std::vector<std::uint32_t> stripes_of_trainer(int trainer) const;
  std::vector<std::uint32_t> stripes_of_producer(int producer) const;
  // Positions of the trainers that a producer serves, and of the producers that serve a trainer.
  std::vector<int> trainers_served_by(int producer) const;
  std::vector<int> producers_serving(int trainer) const;
  // For each stripe of the producer, the index of its trainer in trainers_served_by(producer); for each stripe of the
  // trainer, the index of its producer in producers_serving(trainer).
  std::map<std::uint32_t, int> trainer_places(int producer) const;
  std::map<std::uint32_t, int> producer_places(int trainer) const;
};

// Error(usage) when there are more trainers or producers than stripes.
Routing plan_routing(const Roles& roles, int stripes);

// World ranks that `rank` exchanges parcels with: a producer's trainers, a trainer's producers. Not to be called if
// every rank does both.
std::vector<int> peer_ranks(const Roles& roles, const Routing& routing, int rank);

// "trainer and producer of stripes 4-5", "producer of stripes 5 53 101": what a rank of the world does.
std::string describe_work(const Roles& roles, const Routing& routing, int rank);

// "stripes 11 11 10": how many each trainer has; empty when all have equally many. For the start-up table.
std::string describe_shares(const Routing& routing);

}  // namespace millrace
