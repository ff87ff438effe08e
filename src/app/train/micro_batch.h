#pragma once
#include <cstdint>

#include "millrace/parallel/shard_plan.h"
#include "train/routing.h"

// How trainers cut their share of a step into micro-batches.
namespace millrace {

// The images that a trainer takes at once: batch.micro, or its whole share of a step where that is less. Error(usage)
// when trainers with equal shares cannot cut them into whole micro-batches; the message says which numbers would do.
// Where shares differ, a trainer's last micro-batch may be smaller, and some have one more of them.
int micro_batch_of_share(const Routing& routing, int global_batch, int micro_batch);

// For train-autoencoder, whose VAE makes several passes of a micro-batch of more than `images_of_one_pass`.
// Error(usage) where that may be another number of them on trainers with a smaller last micro-batch, and passes are
// collective.
void check_passes(const Routing& routing, const ShardPlan& shards, int micro_batch, std::int64_t images_of_one_pass);

// What batch.micro=auto takes where `fitting` images, at least 1, have room: with equal shares the largest that divides
// them; else the smallest of those that cut the largest share into as few as can be, so that its last one is hardly
// smaller.
int choose_micro_batch(const Routing& routing, int global_batch, int fitting);

}  // namespace millrace
