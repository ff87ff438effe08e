#include "gradient_buckets.h"

#include "millrace/core/error.h"
#include "millrace/parallel/storage_order.h"
#include "transient_memory.h"

namespace millrace {

static std::vector<int> parameters_in_buckets(const FlatLayout& layout) {
  std::vector<int> counts;
  for (const auto& bucket : layout.buckets) counts.push_back(static_cast<int>(bucket.placements.size()));
  return counts;
}

GradientBuckets::GradientBuckets(const FlatLayout& layout, const ShardGroups& groups, bool travel_in_bfloat16,
                                 torch::Device device)
    : groups_(groups),
      travel_in_bfloat16_(travel_in_bfloat16 && groups.is_shared()),
      order_(parameters_in_buckets(layout)) {
  const auto options = torch::TensorOptions(torch::kFloat32).device(device);
  for (int b = 0; b < static_cast<int>(layout.buckets.size()); ++b) {
    buckets_.push_back(torch::zeros({layout.buckets[b].elements}, options));
    shards_.push_back(groups_.shard_of(buckets_[b]));
    for (const auto& placement : layout.buckets[b].placements)
      places_.push_back({view_into(buckets_[b], placement, layout.parameters[placement.parameter]), b});
    if (!groups_.plan.splits_parameters()) continue;
    shards_[b] = torch::zeros_like(shards_[b]);
    release_memory(buckets_[b]);
  }
}

void GradientBuckets::begin(int backwards) {
  for (auto& place : places_) place.arrived = 0;
  rounds_ = groups_.plan.splits_parameters() ? backwards : 1;
  rounds_done_ = 0;
  order_.begin(backwards / rounds_);
}

void GradientBuckets::take(int parameter, const torch::Tensor& gradient) {
  auto& place = places_[parameter];
  const bool split = groups_.plan.splits_parameters();
  ensure(!split || place.arrived == rounds_done_,
         "where parameters are split, each must get one gradient in each backward pass");
  allocate(place.bucket);
  // A bucket that stays still holds the last step's; one that does not begins every round anew.
  const bool is_first = place.arrived++ == 0 || split;
  is_first ? place.sum.copy_(gradient) : place.sum.add_(gradient);
  for (const int ready : order_.arrived(place.bucket)) reduce(ready);
}

void GradientBuckets::allocate(int bucket) {
  if (has_memory(buckets_[bucket])) return;
  allocate_memory(buckets_[bucket]);
  buckets_[bucket].zero_();  // what lies between the parameters is summed, too
}

void GradientBuckets::reduce(int b) {
  start_sum(b);
  if (!groups_.plan.splits_parameters()) return;
  const bool is_last = b == 0;
  arrive_but(is_last || !groups_.transfers_later() ? 0 : 1);
  if (is_last && ++rounds_done_ < rounds_) order_.begin(1);
}

void GradientBuckets::start_sum(int b) {
  if (travel_in_bfloat16_) arrive_but(1);  // two copies at once
  const auto whole = travel_in_bfloat16_ ? buckets_[b].to(torch::kBFloat16) : buckets_[b];
  if (travel_in_bfloat16_ && groups_.plan.splits_parameters()) release_memory(buckets_[b]);
  travelling_.push_back({b, whole, groups_.sum(whole, groups_.shard_of(whole))});
}

void GradientBuckets::arrive_but(std::size_t newest) {
  while (travelling_.size() > newest) arrive();
}

// The oldest one's sum may be read.
void GradientBuckets::arrive() {
  const auto [b, whole, mark] = std::move(travelling_.front());
  travelling_.pop_front();
  groups_.join(mark);
  const auto sum = groups_.shard_of(whole);
  if (!groups_.plan.splits_parameters()) {
    if (travel_in_bfloat16_) shards_[b].copy_(sum);
    return;
  }
  rounds_done_ == 0 ? shards_[b].copy_(sum) : shards_[b].add_(sum);
  if (!travel_in_bfloat16_) release_memory(buckets_[b]);
}

void GradientBuckets::finish(double factor) {
  for (auto& place : places_) {
    if (place.arrived > 0) continue;
    allocate(place.bucket);
    place.sum.zero_();
  }
  for (const int bucket : order_.rest()) {
    allocate(bucket);
    reduce(bucket);
  }
  arrive_but(0);
  groups_.wait();
  if (factor == 1.0) return;
  for (auto& shard : shards_) shard.mul_(factor);
}

}  // namespace millrace
