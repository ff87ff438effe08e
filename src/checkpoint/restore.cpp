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
  optimizer.set_updates(state.updates, state.ema_updates);
  optimizer.publish_weights();
}

}  // namespace millrace
