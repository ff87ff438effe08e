#pragma once
#include <torch/types.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

#include "bucket_order.h"
#include "millrace/parallel/flat_layout.h"
#include "shard_groups.h"

namespace millrace {

// A trainer's gradients on their way to the sums of its shard: added up in float32 buckets, which are reduced from the
// last to the first.
//
// Where all parameters are whole, each bucket is reduced once, in the last backward pass, which goes on meanwhile.
// Where they are split, whole gradients are not kept either, so each pass is a round of reductions, and the shards add
// the rounds up. A bucket has memory from its first gradient until its sum has arrived, or what travels is its bfloat16
// form: on a device, where that happens while backward goes on, one bucket more than on a CPU.
//
// Most of a U-Net's parameters are small, and on a GPU adding one takes as long as starting a kernel does. So small
// gradients wait there for the others of their bucket and pass, and are added together: the same sums.
class GradientBuckets {
 public:
  GradientBuckets(const FlatLayout& layout, const ShardGroups& groups, bool travel_in_bfloat16, torch::Device device);

  void begin(int backwards);
  // Adds a gradient of the layout's parameter of this index.
  void take(int parameter, const torch::Tensor& gradient);
  // A replayed CUDA graph has added a gradient of every parameter to the sums, as the pass did that was recorded.
  void repeat();
  // Whether all parameters have had equally many gradients.
  bool is_level() const;
  void finish(const std::function<void()>& meanwhile);

  const torch::Tensor& shard(int bucket) const { return shards_[bucket]; }
  const std::vector<torch::Tensor>& shards() const { return shards_; }

  // How many split buckets have memory at once, at most: on a device one fills while the sum of another is under way.
  static constexpr std::size_t most_at_once(bool transfers_later) { return transfers_later ? 2 : 1; }

 private:
  struct Place {
    torch::Tensor sum;  // a view into the bucket
    int bucket;
    bool waits;       // its gradients are small
    int arrived = 0;  // gradients since `begin`
  };
  // Small gradients of one pass that have arrived in a bucket, and where they belong.
  struct Waiting {
    std::vector<torch::Tensor> sums, gradients;
    std::size_t all = 0;  // that a pass has
    int pass = 0;
  };
  bool replaces(int arrived) const;
  void sum(const Place& place, const torch::Tensor& gradient);
  void hold_back(const Place& place, const torch::Tensor& gradient);
  void add_waiting(int bucket);
  void allocate(int bucket);
  void reduce(int bucket);
  void start_sum(int bucket);
  void arrive();
  void arrive_but(std::size_t newest);

  const ShardGroups& groups_;
  const bool travel_in_bfloat16_, by_own_kernels_;
  std::vector<torch::Tensor> buckets_;  // float32; where parameters are split, they have memory for a while only
  std::vector<torch::Tensor> shards_;   // views of the buckets where these stay
  std::vector<Place> places_;           // as the layout's parameters
  std::vector<Waiting> waiting_;        // as the buckets
  BucketOrder order_;
  // Sums that have been started, the oldest first, and what is on its way: the bucket itself or its bfloat16 form.
  struct Travelling {
    int bucket;
    torch::Tensor whole;
    ShardGroups::Mark mark;
  };
  std::deque<Travelling> travelling_;
  int rounds_ = 0, rounds_done_ = 0;
};

}  // namespace millrace
