#pragma once
#include <torch/types.h>

#include <memory>

#include "millrace/comm/collectives.h"
#include "millrace/parallel/sharded_model.h"

namespace millrace {

// With whom a trainer shares what, and how tensors travel there.
struct ShardGroups {
  // Collective.
  ShardGroups(const ShardPlan& plan, const Group& trainers, const MakeCollectives& make);

  // This trainer's part of a bucket, a view.
  torch::Tensor shard_of(const torch::Tensor& bucket) const;
  // own := this shard's part of the sum of `bucket` over all trainers; `own` is that part of the bucket.
  void sum(const torch::Tensor& bucket, const torch::Tensor& own) const;
  // bucket := the shards of all.
  void gather(const torch::Tensor& shard, const torch::Tensor& bucket) const;
  void share_with_replicas(const torch::Tensor& shard, int from_replica) const;
  // Until all of it is done.
  void wait() const;

  ShardPlan plan;
  int shard;
  std::unique_ptr<Collectives> shards, replicas;  // null where there is one shard, one replica
};

}  // namespace millrace
