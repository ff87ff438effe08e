#pragma once
#include <torch/types.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "shard_groups.h"

namespace millrace {

// A trainer's parameters on their way from the shards, each of which one trainer of a replica writes to, to the flat
// buckets that all of them compute with.
//
// Where all parameters are whole, they are gathered after each update, in their order, and each is waited for where it
// is used. Where they are split, a bucket is gathered for its use, and has memory while it is one of the last used; on
// a device one more, which is likely to be the next, is gathered meanwhile.
class ParameterBuckets {
 public:
  explicit ParameterBuckets(const ShardGroups& groups) : groups_(groups) {}

  // Adds a bucket: zeros, whole.
  const torch::Tensor& add(std::int64_t elements, const torch::TensorOptions& options);
  // The contents of the bucket are complete. If the plan splits parameters, only the own shard of them is kept.
  void keep(int bucket);

  int count() const { return static_cast<int>(buckets_.size()); }
  // Read it only after provide().
  const torch::Tensor& bucket(int b) const { return buckets_[b]; }
  // This rank's part. Call finish_gathers() before writing to it, publish() afterwards.
  const torch::Tensor& shard(int b) const { return shards_[b]; }

  // Makes the bucket whole for what is computed from now on. Collective if the plan splits parameters.
  void provide(int b);
  // Completes gathers under way: they read the shards, and may write the own part of a bucket back to where it was
  // read.
  void finish_gathers();
  // Makes what was written to the shards the contents of the buckets. Collective.
  void publish();

  // How many split buckets have memory at once, at most. A layer's weight and bias may lie in two (nn::Layer).
  static constexpr std::size_t whole_at_once = 2;
  static constexpr std::size_t most_at_once(bool transfers_later) { return whole_at_once + (transfers_later ? 1 : 0); }

 private:
  struct Gather {
    int bucket;
    ShardGroups::Mark mark;
  };
  void start_gathers(int first, int count);
  void make_whole(int bucket);
  void start_whole(int bucket);
  void look_ahead(int bucket);
  void forget_ahead();

  const ShardGroups& groups_;
  std::vector<torch::Tensor> buckets_;
  std::vector<torch::Tensor> shards_;  // views of the buckets unless the plan splits parameters
  std::vector<Gather> gathers_;        // that nobody has waited for yet, in their order, which is that of the buckets
  // Where parameters are split:
  std::vector<int> whole_;       // the buckets that are whole, last used last
  std::optional<Gather> ahead_;  // of the bucket that is likely to be next
  int last_asked_ = -1;          // bucket, since the update
};

}  // namespace millrace
