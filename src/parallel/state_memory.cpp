#include "millrace/parallel/state_memory.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "gradient_buckets.h"
#include "parameter_buckets.h"

namespace millrace {

std::int64_t StateMemory::peak(std::int64_t activations) const {
  return lasting() + whole_buckets + activations;
}

std::size_t bfloat16_copies_at_once(const ShardPlan& plan, bool overlaps) {
  return overlaps && !plan.splits_parameters() ? 8 : 2;
}

StateMemory plan_state_memory(const FlatLayout& layout, const ShardPlan& plan, const ParallelConfig& config,
                              torch::Dtype dtype, bool has_ema, bool overlaps) {
  std::vector<std::int64_t> buckets;  // elements, the largest first
  for (const auto& bucket : layout.buckets) buckets.push_back(bucket.elements);
  std::ranges::sort(buckets, std::greater<>());
  const auto all = std::accumulate(buckets.begin(), buckets.end(), std::int64_t{0}), shard = all / plan.shards;
  const auto held = plan.splits_parameters() ? shard : all;

  constexpr std::int64_t float_bytes = sizeof(float);
  const auto parameter_bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  StateMemory memory{};
  memory.parameters = parameter_bytes * held;
  memory.gradients = float_bytes * held;
  memory.masters = dtype == torch::kFloat32 ? 0 : float_bytes * shard;
  memory.moments = 2 * float_bytes * shard;
  memory.ema = has_ema ? float_bytes * shard : 0;
  const auto largest = [&](std::size_t count) {
    const auto end = buckets.begin() + static_cast<std::ptrdiff_t>(std::min(count, buckets.size()));
    return std::accumulate(buckets.begin(), end, std::int64_t{0});
  };
  if (plan.splits_parameters()) {
    memory.whole_buckets = parameter_bytes * largest(ParameterBuckets::most_at_once(overlaps)) +
                           float_bytes * largest(GradientBuckets::most_at_once(overlaps));
  } else if (config.reduce_dtype.value == ReduceDtype::bfloat16 && plan.shards * plan.replicas > 1) {
    constexpr std::int64_t bfloat16_bytes = 2;
    memory.whole_buckets = bfloat16_bytes * largest(bfloat16_copies_at_once(plan, overlaps));
  }
  return memory;
}

}  // namespace millrace
