#include "millrace/parallel/shard_plan.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "millrace/core/error.h"

namespace millrace {

void ParallelConfig::describe(config::Section& section) {
  section.key(
      "strategy", strategy,
      {{"ddp", Strategy::ddp},
       {"shard_grad_op", Strategy::shard_grad_op},
       {"full_shard", Strategy::full_shard},
       {"hybrid", Strategy::hybrid}},
      "ddp splits nothing, shard_grad_op the optimizer's state, full_shard parameters and gradients too; hybrid is "
      "shard_grad_op among shard_size trainers");
  section.key("shard_size", shard_size, "hybrid only: trainers that share one copy; auto = those of a node")
      .at_least(1);
  section.key("reduce_dtype", reduce_dtype, {{"float32", ReduceDtype::float32}, {"bfloat16", ReduceDtype::bfloat16}},
              "gradients travel between the trainers in this; auto = float32");
  section.key("bucket_mb", bucket_mb, "megabytes of float32 parameters that are moved together").above(0);
}

// Neighbours share a copy of the model. Gradients cross the network once for each copy, and what stays within one
// should stay inside a node.
static void check_order_of_trainers(const std::vector<std::string>& hosts) {
  std::set<std::string> seen;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (i > 0 && hosts[i] == hosts[i - 1]) continue;
    if (seen.insert(hosts[i]).second) continue;
    throw Error(Exit::usage,
                fmt::format("parallel.strategy=hybrid: the trainers of {} do not follow each other", hosts[i]),
                "start them node by node: srun --distribution=block, mpirun --map-by slot");
  }
}

// As many as all nodes have.
static int trainers_of_a_node(const std::vector<std::string>& hosts) {
  const auto first = std::ranges::count(hosts, hosts.front());
  for (const auto& host : hosts) {
    const auto count = std::ranges::count(hosts, host);
    if (count == first) continue;
    throw Error(
        Exit::usage,
        fmt::format("parallel.strategy=hybrid: {} has {} trainers, {} has {}", hosts.front(), first, host, count),
        "parallel.shard_size=N, which divides the trainers, or parallel.strategy=shard_grad_op");
  }
  return static_cast<int>(first);
}

ShardPlan plan_shards(const ParallelConfig& config, const std::vector<std::string>& hosts) {
  ensure(!hosts.empty(), "plan_shards: no trainers");
  const int trainers = static_cast<int>(hosts.size());
  switch (config.strategy) {
    case Strategy::ddp:
      return {.strategy = config.strategy, .shards = 1, .replicas = trainers};
    case Strategy::shard_grad_op:
    case Strategy::full_shard:
      return {.strategy = config.strategy, .shards = trainers, .replicas = 1};
    case Strategy::hybrid: {
      check_order_of_trainers(hosts);
      const int shards = config.shard_size.value ? *config.shard_size.value : trainers_of_a_node(hosts);
      if (trainers % shards != 0)
        throw Error(Exit::usage,
                    fmt::format("parallel.shard_size = {} does not divide the {} trainers", shards, trainers));
      return {.strategy = config.strategy, .shards = shards, .replicas = trainers / shards};
    }
  }
  throw bug("every strategy has a plan");
}

std::optional<std::string> complaint_about_nodes(const ShardPlan& plan, const std::vector<std::string>& hosts) {
  if (plan.strategy != Strategy::hybrid) return std::nullopt;
  std::ptrdiff_t most = 0, inside = 0;  // trainers of a node; what divides those of each
  for (const auto& host : hosts) {
    const auto count = std::ranges::count(hosts, host);
    most = std::max(most, count);
    inside = std::gcd(inside, count);
  }
  if (plan.shards > most) return std::nullopt;  // as it was meant
  for (int first = 0; first < plan.shards * plan.replicas; first += plan.shards) {
    const auto& from = hosts[static_cast<std::size_t>(first)];
    const auto& to = hosts[static_cast<std::size_t>(first + plan.shards - 1)];
    if (from != to)
      return fmt::format(
          "parallel.shard_size = {}: {} and {} share a copy of the model over the network, which hybrid is there to "
          "avoid; a number that divides {} keeps each copy inside of a node",
          plan.shards, from, to, inside);
  }
  return std::nullopt;
}

std::string to_string(Strategy strategy) {
  switch (strategy) {
    case Strategy::ddp:
      return "ddp";
    case Strategy::shard_grad_op:
      return "shard_grad_op";
    case Strategy::full_shard:
      return "full_shard";
    case Strategy::hybrid:
      return "hybrid";
  }
  throw bug("every strategy has a name");
}

}  // namespace millrace
