#pragma once
#include <string>
#include <vector>

#include "millrace/config/config.h"

namespace millrace {

enum class Strategy {
  ddp,            // every trainer holds everything; gradients are averaged
  shard_grad_op,  // gradients, moments and EMA are split over all trainers; parameters stay resident
  full_shard,     // parameters are split too
  hybrid,         // split inside a node, replicated across nodes
};

enum class ReduceDtype { float32, bfloat16 };

// Section `parallel` of the configuration.
struct ParallelConfig {
  Strategy strategy = Strategy::shard_grad_op;
  config::Auto<int> shard_size{};            // hybrid: trainers that share one copy; auto = those of a node
  config::Auto<ReduceDtype> reduce_dtype{};  // auto = what the gradients are on GPUs, float32 on the host
  double bucket_mb = 64;                     // float32 megabytes of parameters that are moved together

  void describe(config::Section& section);
};

// Who shares what: the trainers form replicas * shards; trainer t holds shard t % shards of replica t / shards.
struct ShardPlan {
  Strategy strategy = Strategy::ddp;
  int shards = 1;
  int replicas = 1;

  int shard_of(int trainer) const { return trainer % shards; }
  int replica_of(int trainer) const { return trainer / shards; }
};

// `hosts`: of the trainers, in their order. Error(usage) when hybrid cannot split them evenly, naming what would help.
ShardPlan plan_shards(const ParallelConfig& config, const std::vector<std::string>& hosts);

std::string to_string(Strategy strategy);

}  // namespace millrace
