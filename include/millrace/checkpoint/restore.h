#pragma once
#include "millrace/checkpoint/reader.h"
#include "millrace/parallel/sharded_optimizer.h"

namespace millrace {

// Makes an optimizer and its model what the checkpoint holds. Every trainer reads its own shards, of replicas each a
// part, so that all together read the checkpoint once. Files are closed again at the end. Collective over the trainers;
// Error(io), on all of them, when a tensor is missing or has another shape.
void restore(const CheckpointReader& checkpoint, ShardedAdamW& optimizer);

}  // namespace millrace
