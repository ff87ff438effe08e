#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/config/config.h"

namespace millrace {

// Bytes per parameter on each of N trainers: p for the parameter in its dtype, 4 for its float32 gradient, and m, which
// is 4 for the master weight (0 if p is float32), 8 for the moments and 4 for the EMA.
enum class Strategy {
  ddp,            // p + 4 + m: everything whole; gradients are summed over all
  shard_grad_op,  // p + 4 + m / N: each keeps its own gradients whole, and the sums of its shard alone
  full_shard,     // (p + 4 + m) / N, and the buckets that are in use
  hybrid,         // as shard_grad_op over N = shard_size trainers, replicated over the others
};

enum class ReduceDtype { float32, bfloat16 };

// Section `parallel` of the configuration.
struct ParallelConfig {
  Strategy strategy = Strategy::shard_grad_op;
  config::Auto<int> shard_size{};            // hybrid: trainers that share one copy; auto = those of a node
  config::Auto<ReduceDtype> reduce_dtype{};  // of gradients in transit; auto = float32
  double bucket_mb = 64;                     // float32 megabytes of parameters that are moved together

  std::int64_t bucket_elements() const { return static_cast<std::int64_t>(bucket_mb * 1e6 / sizeof(float)); }
  void describe(config::Section& section);
};

// Who shares what: the trainers form replicas * shards; trainer t holds shard t % shards of replica t / shards.
struct ShardPlan {
  Strategy strategy = Strategy::ddp;
  int shards = 1;
  int replicas = 1;

  int shard_of(int trainer) const { return trainer % shards; }
  int replica_of(int trainer) const { return trainer / shards; }
  // No trainer holds all parameters: they are gathered for each use.
  bool splits_parameters() const { return strategy == Strategy::full_shard && shards > 1; }
};

// `hosts`: the host of each trainer. Error(usage) when hybrid cannot split them evenly, naming what would help.
ShardPlan plan_shards(const ParallelConfig& config, const std::vector<std::string>& hosts);

// hybrid: a warning if a copy of the model spans two nodes although it would fit one.
std::optional<std::string> complaint_about_nodes(const ShardPlan& plan, const std::vector<std::string>& hosts);

std::string to_string(Strategy strategy);

}  // namespace millrace
