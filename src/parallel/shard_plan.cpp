#include "millrace/parallel/shard_plan.h"

#include "millrace/core/error.h"

namespace millrace {

void ParallelConfig::describe(config::Section& section) {
  section
      .key("strategy", strategy,
           {{"ddp", Strategy::ddp},
            {"shard_grad_op", Strategy::shard_grad_op},
            {"full_shard", Strategy::full_shard},
            {"hybrid", Strategy::hybrid}},
           "what the trainers split: nothing, optimizer state and gradients, also parameters, inside a node only")
      .later({"full_shard", "hybrid"});
  section.key("shard_size", shard_size, "hybrid only: trainers that share one copy; auto = those of a node")
      .at_least(1)
      .later();
  section
      .key("reduce_dtype", reduce_dtype, {{"float32", ReduceDtype::float32}, {"bfloat16", ReduceDtype::bfloat16}},
           "gradients are summed over the trainers in this; auto = as they are on GPUs, float32 on CPUs")
      .later({"bfloat16"});
  section.key("bucket_mb", bucket_mb, "megabytes of float32 parameters that are moved together").above(0);
}

ShardPlan plan_shards(const ParallelConfig& config, int trainers, int trainers_per_node) {
  ensure(trainers > 0 && trainers_per_node > 0, "plan_shards: no trainers");
  switch (config.strategy) {
    case Strategy::ddp:
      return {.strategy = config.strategy, .shards = 1, .replicas = trainers};
    case Strategy::shard_grad_op:
      return {.strategy = config.strategy, .shards = trainers, .replicas = 1};
    case Strategy::full_shard:
    case Strategy::hybrid:
      break;
  }
  throw Error(Exit::bug, fmt::format("there is no shard plan for {}", to_string(config.strategy)));
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
  throw Error(Exit::bug, "unknown strategy");
}

}  // namespace millrace
