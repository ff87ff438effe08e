#include "gradient_buckets.h"

#include <algorithm>

#include "millrace/core/error.h"
#include "millrace/kernels/ops.h"
#include "millrace/nn/fused.h"
#include "millrace/parallel/state_memory.h"
#include "millrace/parallel/storage_order.h"
#include "transient_memory.h"

namespace millrace {

// Elements: 449 of the 686 parameters of SD 2's U-Net, with 0.6% of all elements. Several are added at once when they
// have been converted, which moves 8 bytes more of each: up to here that takes less time than starting a kernel.
constexpr std::int64_t small_gradient = 1 << 18;

static std::vector<int> parameters_in_buckets(const FlatLayout& layout) {
  std::vector<int> counts;
  for (const auto& bucket : layout.buckets) counts.push_back(static_cast<int>(bucket.placements.size()));
  return counts;
}

// The gradient with the strides of its place. LibTorch puts several tensors into others by one kernel where all strides
// agree, those of single elements too, which a 1x1 convolution has, and which say nothing.
static torch::Tensor laid_as(const torch::Tensor& sum, const torch::Tensor& gradient) {
  for (std::int64_t d = 0; d < sum.dim(); ++d)
    if (sum.size(d) != 1 && sum.stride(d) != gradient.stride(d))
      return at::empty_like(sum, gradient.options()).copy_(gradient);
  return gradient.as_strided(sum.sizes(), sum.strides());
}

// LibTorch adds several tensors by one kernel where all are of one type.
static std::vector<torch::Tensor> in_float32(std::vector<torch::Tensor> gradients) {
  if (gradients[0].scalar_type() == torch::kFloat32) return gradients;
  std::vector<torch::Tensor> converted;
  for (const auto& gradient : gradients) converted.push_back(at::empty_like(gradient, torch::kFloat32));
  at::_foreach_copy_(converted, gradients);
  return converted;
}

GradientBuckets::GradientBuckets(const FlatLayout& layout, const ShardGroups& groups, bool travel_in_bfloat16,
                                 torch::Device device)
    : groups_(groups),
      travel_in_bfloat16_(travel_in_bfloat16 && groups.is_shared()),
      by_own_kernels_(nn::fused_kernels_on(device)),
      waiting_(layout.buckets.size()),
      order_(parameters_in_buckets(layout)) {
  const auto options = torch::TensorOptions(torch::kFloat32).device(device);
  for (int b = 0; b < static_cast<int>(layout.buckets.size()); ++b) {
    buckets_.push_back(torch::zeros({layout.buckets[b].elements}, options));
    shards_.push_back(groups_.shard_of(buckets_[b]));
    for (const auto& placement : layout.buckets[b].placements) {
      const auto& parameter = layout.parameters[placement.parameter];
      const bool waits = by_own_kernels_ && parameter.elements() <= small_gradient;
      places_.push_back({view_into(buckets_[b], placement, parameter), b, waits});
      waiting_[b].all += waits ? 1 : 0;
    }
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
  if (place.waits) {
    hold_back(place, gradient);
  } else {
    sum(place, gradient);
  }
  ++place.arrived;
  for (const int ready : order_.arrived(place.bucket)) reduce(ready);
}

void GradientBuckets::repeat() {
  ensure(!groups_.plan.splits_parameters(), "where parameters are split, no pass runs by itself");
  for (auto place = places_.rbegin(); place != places_.rend(); ++place) {
    ++place->arrived;
    for (const int ready : order_.arrived(place->bucket)) reduce(ready);
  }
}

bool GradientBuckets::is_level() const {
  return std::ranges::all_of(places_, [&](const Place& place) { return place.arrived == places_[0].arrived; });
}

// Whether a gradient that so many came before is not added: a bucket that stays still holds the last step's, and one
// that does not begins every round anew.
bool GradientBuckets::replaces(int arrived) const {
  return arrived == 0 || groups_.plan.splits_parameters();
}

// By our own kernel where there is one: LibTorch converts and adds at half of the memory's speed.
void GradientBuckets::sum(const Place& place, const torch::Tensor& gradient) {
  if (by_own_kernels_) {
    kernels::sum_gradient(place.sum, laid_as(place.sum, gradient), replaces(place.arrived));
  } else if (replaces(place.arrived)) {
    place.sum.copy_(gradient);
  } else {
    place.sum.add_(gradient);
  }
}

void GradientBuckets::hold_back(const Place& place, const torch::Tensor& gradient) {
  auto& waiting = waiting_[place.bucket];
  if (waiting.pass != place.arrived) add_waiting(place.bucket);  // of a pass that has left parameters out
  waiting.pass = place.arrived;
  waiting.sums.push_back(place.sum);
  waiting.gradients.push_back(laid_as(place.sum, gradient));
  if (waiting.sums.size() == waiting.all) add_waiting(place.bucket);
}

void GradientBuckets::add_waiting(int bucket) {
  auto& waiting = waiting_[bucket];
  if (waiting.sums.empty()) return;
  if (replaces(waiting.pass)) {
    at::_foreach_copy_(waiting.sums, waiting.gradients);
  } else {
    at::_foreach_add_(waiting.sums, in_float32(std::move(waiting.gradients)));
  }
  waiting.sums.clear();
  waiting.gradients.clear();
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
  arrive_but(is_last ? 0 : most_at_once(groups_.transfers_later()) - 1);
  if (is_last && ++rounds_done_ < rounds_) order_.begin(1);
}

void GradientBuckets::start_sum(int b) {
  add_waiting(b);
  if (travel_in_bfloat16_) arrive_but(bfloat16_copies_at_once(groups_.plan, groups_.sums_later()) - 1);
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
  if (rounds_done_ == 0) {
    shards_[b].copy_(sum);
  } else {
    shards_[b].add_(sum);
  }
  if (!travel_in_bfloat16_) release_memory(buckets_[b]);
}

void GradientBuckets::finish(const std::function<void()>& meanwhile) {
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
  groups_.wait(meanwhile);
}

}  // namespace millrace
