#pragma once
#include <torch/types.h>

#include <cstddef>
#include <cstdint>

#include "millrace/parallel/flat_layout.h"
#include "millrace/parallel/shard_plan.h"

namespace millrace {

// Bytes of the tensors that a trainer holds, apart from activations.
struct StateMemory {
  // From step to step.
  std::int64_t parameters;
  std::int64_t gradients;
  std::int64_t masters;  // 0 where the parameters are float32 themselves
  std::int64_t moments;
  std::int64_t ema;
  // For a while, beside the activations. If parameters are split: two buckets of parameters and one of gradients, and
  // one more of each if transfers overlap with arithmetic. Else, if gradients travel in bfloat16: their copies.
  std::int64_t whole_buckets;

  std::int64_t lasting() const { return parameters + gradients + masters + moments + ema; }
  // The peak of a step whose activations take this much.
  std::int64_t peak(std::int64_t activations) const;
};

// How many buckets' gradients may be in transit at once as bfloat16 copies; backward waits for the oldest before it
// makes one more. A U-Net gives most of its gradients in the middle of backward, in a third of its time: with many
// copies, backward need not wait until the network has caught up.
std::size_t bfloat16_copies_at_once(const ShardPlan& plan, bool overlaps);

// Computes it for each trainer from shapes alone. `overlaps`: transfers overlap with arithmetic, as on GPUs.
StateMemory plan_state_memory(const FlatLayout& layout, const ShardPlan& plan, const ParallelConfig& config,
                              torch::Dtype dtype, bool has_ema, bool overlaps);

}  // namespace millrace
