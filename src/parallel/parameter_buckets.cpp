#include "parameter_buckets.h"

#include <algorithm>
#include <cstdlib>
#include <span>
#include <utility>

#include "transient_memory.h"

namespace millrace {

// Whole buckets whose gathers start together: each start costs the host up to 0.1 ms with NCCL, in which a GPU gets
// nothing to do, and a layer waits for all that start with its own.
constexpr int gathers_at_once = 8;

const torch::Tensor& ParameterBuckets::add(std::int64_t elements, const torch::TensorOptions& options) {
  shards_.push_back(groups_.shard_of(buckets_.emplace_back(torch::zeros({elements}, options))));
  return buckets_.back();
}

void ParameterBuckets::keep(int b) {
  if (!groups_.plan.splits_parameters()) return;
  shards_[b] = shards_[b].clone();
  release_memory(buckets_[b]);
}

void ParameterBuckets::finish_gathers() {
  if (!gathers_.empty()) provide(gathers_.back().bucket);
  forget_ahead();
}

void ParameterBuckets::publish() {
  finish_gathers();
  if (groups_.plan.splits_parameters()) {
    for (const int bucket : std::exchange(whole_, {})) release_memory(buckets_[bucket]);
    last_asked_ = -1;
    return;
  }
  for (int first = 0, size = 1; first < count(); first += size) {
    size = std::min({std::max(first, 1), gathers_at_once, count() - first});  // 1, 1, 2, 4, 8, 8, ...
    start_gathers(first, size);
  }
}

void ParameterBuckets::start_gathers(int first, int count) {
  const auto of = [&](const std::vector<torch::Tensor>& all) { return std::span(all).subspan(first, count); };
  const auto mark = groups_.gather(of(shards_), of(buckets_));
  for (int b = first; b < first + count; ++b) gathers_.push_back({b, mark});
}

void ParameterBuckets::provide(int b) {
  if (groups_.plan.splits_parameters()) return make_whole(b);
  const auto own = std::ranges::find(gathers_, b, &Gather::bucket);
  if (own == gathers_.end()) return;
  groups_.join(own->mark);
  gathers_.erase(gathers_.begin(), own + 1);
}

void ParameterBuckets::make_whole(int b) {
  if (const auto place = std::ranges::find(whole_, b); place != whole_.end()) {
    std::rotate(place, place + 1, whole_.end());
  } else {
    if (whole_.size() == whole_at_once) {
      release_memory(buckets_[whole_.front()]);
      whole_.erase(whole_.begin());
    }
    if (!ahead_ || ahead_->bucket != b) start_whole(b);
    groups_.join(std::exchange(ahead_, std::nullopt)->mark);
    whole_.push_back(b);
  }
  const int before = std::exchange(last_asked_, b);
  if (std::abs(b - before) == 1) look_ahead(b + (b - before));
}

// In place of another one, if that was not used.
void ParameterBuckets::start_whole(int b) {
  forget_ahead();
  allocate_memory(buckets_[b]);
  ahead_ = Gather{b, groups_.gather(std::span(&shards_[b], 1), std::span(&buckets_[b], 1))};
}

// Forward asks for one bucket after the other, backward too, from the last to the first; after a jump nothing tells the
// next. Where a block is computed anew for its backward the order turns around twice, so one gather or two of each
// block are in vain.
void ParameterBuckets::look_ahead(int next) {
  const bool exists = 0 <= next && next < count();
  if (!exists || !groups_.transfers_later() || std::ranges::count(whole_, next) > 0) return;
  if (!ahead_ || ahead_->bucket != next) start_whole(next);
}

void ParameterBuckets::forget_ahead() {
  if (!ahead_) return;
  groups_.join(ahead_->mark);
  release_memory(buckets_[ahead_->bucket]);
  ahead_.reset();
}

}  // namespace millrace
