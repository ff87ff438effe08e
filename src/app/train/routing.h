#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "train/roles.h"

namespace millrace {

// Stripes -> trainers and producers: trainer t has every stripe s with s T / S == t (rounded down), a run of stripes,
// and no trainer has two more than another. Producer p has every stripe s with s % P == p; with `all_in_one` each rank
// produces its own run of stripes.
struct Routing {
  std::vector<int> trainer_of_stripe, producer_of_stripe;  // positions in Roles
  int trainers() const;
  bool is_even() const;  // all trainers have equally many stripes
  // Samples of a step that the trainer with most of them has.
  int largest_share(int global_batch) const;
  std::vector<std::uint32_t> stripes_of_trainer(int trainer) const;
  std::vector<std::uint32_t> stripes_of_producer(int producer) const;
  // Positions of the trainers that a producer serves, and of the producers that serve a trainer.
  std::vector<int> trainers_served_by(int producer) const;
  std::vector<int> producers_serving(int trainer) const;
  // Per stripe of the producer, where its trainer stands in trainers_served_by(producer); per stripe of the trainer,
  // where its producer stands in producers_serving(trainer).
  std::map<std::uint32_t, int> trainer_places(int producer) const;
  std::map<std::uint32_t, int> producer_places(int trainer) const;
};

// Error(usage) when there are more trainers or producers than stripes.
Routing plan_routing(const Roles& roles, int stripes);

// World ranks that this trainer or producer shares a hand-off with: a producer's trainers, a trainer's producers. Where
// every rank does both there are none to ask for.
std::vector<int> peer_ranks(const Roles& roles, const Routing& routing, int rank);

// "trainer and producer of stripes 4-5", "producer of stripes 5 53 101": what a rank of the world does.
std::string describe_work(const Roles& roles, const Routing& routing, int rank);

// "stripes 11 11 10", what each trainer has; empty when all have equally many. For the start-up table.
std::string describe_shares(const Routing& routing);

}  // namespace millrace
