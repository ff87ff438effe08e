#include "millrace/checkpoint/restore.h"

#include "millrace/checkpoint/tensors.h"
#include "millrace/core/log.h"

namespace millrace {

void restore(const CheckpointReader& checkpoint, ShardedAdamW& optimizer) {
  CheckpointTensors tensors(checkpoint);
  for (const auto& [kind, shards] : optimizer.state()) {
    const bool from_weights = kind == "ema" && !checkpoint.has("ema");
    if (from_weights) log::info("the checkpoint has no EMA: it starts from the weights");
    optimizer.load(kind, [&, source = from_weights ? "weights" : kind](const Slice& slice, std::span<float> elements) {
      tensors.read(source, slice, elements);
    });
  }
  const auto state = checkpoint.state();
  // An EMA that begins anew warms up anew, also where the run had one before.
  optimizer.set_updates(state.updates, checkpoint.has("ema") ? state.ema_updates : 0);
  optimizer.publish_weights();
}

}  // namespace millrace
