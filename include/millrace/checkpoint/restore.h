#pragma once
#include "millrace/checkpoint/reader.h"
#include "millrace/parallel/sharded_optimizer.h"

namespace millrace {

// Loads a checkpoint into an optimizer and its model. Every trainer reads its own shard, of replicas each a part of it,
// so that together they read the checkpoint once. Collective over the trainers; Error(io), on all of them, when a
// tensor is missing or has another shape.
void restore(const CheckpointReader& checkpoint, ShardedAdamW& optimizer);

}  // namespace millrace
