#pragma once
#include <torch/types.h>

#include <functional>
#include <memory>
#include <span>

#include "millrace/comm/collectives.h"
#include "millrace/parallel/shard_plan.h"

namespace millrace {

// With whom a trainer shares shards and sums, and the transfers between them.
struct ShardGroups {
  // Collective.
  ShardGroups(const ShardPlan& plan, const Group& trainers, const MakeCollectives& make);

  // Whether there are other trainers.
  bool is_shared() const { return within_replica || across_replicas; }
  // Whether transfers within a replica may still be under way when the call returns.
  bool transfers_later() const { return within_replica && !within_replica->is_done_at_once(); }
  // The same for a sum, to which all replicas add.
  bool sums_later() const { return transfers_later() || (across_replicas && !across_replicas->is_done_at_once()); }
  // This trainer's part of a bucket, a view.
  torch::Tensor shard_of(const torch::Tensor& bucket) const;
  // A position in the sequence of transfers.
  struct Mark {
    Collectives::Mark within = 0, across = 0;
  };

  // These start a transfer; the tensors must live, and be left alone, until the mark behind it is joined.
  // own := this shard's part of the sum of `bucket` over all trainers; `own` is that part of the bucket.
  Mark sum(const torch::Tensor& bucket, const torch::Tensor& own) const;
  // Each bucket := the shards of all; several are one transfer.
  Mark gather(std::span<const torch::Tensor> shards, std::span<const torch::Tensor> buckets) const;

  // The position after all transfers started so far.
  Mark mark() const;
  // What is computed from now on waits for the transfers before the mark (comm/collectives.h).
  void join(const Mark& mark) const;
  // The host waits for all of them.
  void wait(const std::function<void()>& meanwhile) const;

  void share_with_replicas(const torch::Tensor& shard, int from_replica) const;

  ShardPlan plan;
  int shard;
  std::unique_ptr<Collectives> within_replica, across_replicas;  // null where there is one shard, one replica
};

}  // namespace millrace
