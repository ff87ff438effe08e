#pragma once
#include <cstdint>

#include "millrace/parallel/shard_plan.h"
#include "train/routing.h"

// How trainers cut their share of a step into micro-batches.
namespace millrace {

// The images of a micro-batch: batch.micro, or a trainer's whole share of a step if that is less. Error(usage) when
// trainers with equal shares cannot cut them into whole micro-batches; the message says which numbers would do. If
// shares differ, a trainer's last micro-batch may be smaller, and some trainers have one more of them.
int micro_batch_of_share(const Routing& routing, int global_batch, int micro_batch);

// For train-autoencoder, whose VAE makes several passes of a micro-batch of more than `images_of_one_pass`.
// Error(usage) if passes are collective and trainers with a smaller last micro-batch might make fewer of them.
void check_passes(const Routing& routing, const ShardPlan& shards, int micro_batch, std::int64_t images_of_one_pass);

// What batch.micro=auto stands for if `fitting` images, at least 1, fit into memory. With equal shares: the largest
// number up to that which divides a share. Else: the smallest size that cuts the largest share into as few
// micro-batches as possible, so that the last one is hardly smaller.
int choose_micro_batch(const Routing& routing, int global_batch, int fitting);

}  // namespace millrace
