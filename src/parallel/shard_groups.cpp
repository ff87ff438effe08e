#include "shard_groups.h"

#include "millrace/core/error.h"
#include "millrace/kernels/op_scope.h"
#include "millrace/parallel/tensor_buffer.h"

namespace millrace {

ShardGroups::ShardGroups(const ShardPlan& plan, const Group& trainers, const MakeCollectives& make)
    : plan(plan), shard(plan.shard_of(trainers.rank())) {
  ensure(plan.shards * plan.replicas == trainers.size(), "the shard plan is for another number of trainers");
  const int replica = plan.replica_of(trainers.rank());
  const auto of_replica = trainers.split(replica, shard), of_shard = trainers.split(shard, replica);
  if (plan.shards > 1) within_replica = make(of_replica);
  if (plan.replicas > 1) across_replicas = make(of_shard);
}

torch::Tensor ShardGroups::shard_of(const torch::Tensor& bucket) const {
  const auto elements = bucket.numel() / plan.shards;
  return bucket.narrow(0, shard * elements, elements);
}

// Between `sum`'s two operations nothing is joined: both are in one order of transfers.
ShardGroups::Mark ShardGroups::sum(const torch::Tensor& bucket, const torch::Tensor& own) const {
  const kernels::OpScope scope("millrace::sum_gradients");
  Mark mark;
  if (within_replica) {
    within_replica->reduce_scatter_sum(buffer_of(bucket), buffer_of(own));
    mark.within = within_replica->mark();
  }
  if (across_replicas) {
    across_replicas->all_reduce_sum(buffer_of(own));
    mark.across = across_replicas->mark();
  }
  return mark;
}

ShardGroups::Mark ShardGroups::gather(std::span<const torch::Tensor> shards,
                                      std::span<const torch::Tensor> buckets) const {
  const kernels::OpScope scope("millrace::gather_parameters");
  if (!within_replica) return {};
  const auto start = [&] {
    for (std::size_t i = 0; i < buckets.size(); ++i)
      within_replica->all_gather(buffer_of(shards[i]), buffer_of(buckets[i]));
  };
  if (buckets.size() == 1) {
    start();
  } else {
    within_replica->together(start);
  }
  return {.within = within_replica->mark()};
}

void ShardGroups::share_with_replicas(const torch::Tensor& shard, int from_replica) const {
  const kernels::OpScope scope("millrace::share_with_replicas");
  if (!across_replicas) return;
  across_replicas->broadcast(buffer_of(shard), from_replica);
  across_replicas->join(across_replicas->mark());
}

ShardGroups::Mark ShardGroups::mark() const {
  return {.within = within_replica ? within_replica->mark() : 0,
          .across = across_replicas ? across_replicas->mark() : 0};
}

void ShardGroups::join(const Mark& mark) const {
  if (within_replica) within_replica->join(mark.within);
  if (across_replicas) across_replicas->join(mark.across);
}

void ShardGroups::wait(const std::function<void()>& meanwhile) const {
  const kernels::OpScope scope("millrace::wait_for_sums");
  // The last to be joined knows best whether this rank's GPU computes or waits for others: all are in one order.
  if (across_replicas) across_replicas->wait(meanwhile);
  if (within_replica) within_replica->wait(meanwhile);
}

}  // namespace millrace
