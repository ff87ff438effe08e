#pragma once
#include <torch/types.h>

#include <cstddef>
#include <cstdint>

#include "millrace/parallel/flat_layout.h"
#include "millrace/parallel/shard_plan.h"

namespace millrace {

// Bytes of the tensors that a trainer holds, but for its activations.
struct StateMemory {
  // From step to step.
  std::int64_t parameters;
  std::int64_t gradients;
  std::int64_t masters;  // 0 where the parameters are float32 themselves
  std::int64_t moments;
  std::int64_t ema;
  // Beside the activations. Where parameters are split: two buckets of parameters and one of gradients, and one more of
  // each where they travel beside arithmetic. Else, where gradients travel in bfloat16: their copies.
  std::int64_t whole_buckets;

  std::int64_t lasting() const { return parameters + gradients + masters + moments + ema; }
  // The most in a step whose activations take this much.
  std::int64_t peak(std::int64_t activations) const;
};

// The most buckets whose gradients travel in bfloat16 at once, in copies. Backward waits for the oldest before it makes
// one more. A U-Net gives most of its gradients in the middle of backward, in a third of its time: where a copy may lie
// until the network has caught up, backward does not wait for it.
std::size_t bfloat16_copies_at_once(const ShardPlan& plan, bool overlaps);

// Of each trainer, from shapes alone. `overlaps`: transfers run beside arithmetic, as on GPUs.
StateMemory plan_state_memory(const FlatLayout& layout, const ShardPlan& plan, const ParallelConfig& config,
                              torch::Dtype dtype, bool has_ema, bool overlaps);

}  // namespace millrace
