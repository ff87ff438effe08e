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

  // The next bucket: zeros, whole.
  const torch::Tensor& add(std::int64_t elements, const torch::TensorOptions& options);
  // Its contents are there. Where the plan splits parameters the own shard is all that is kept of them.
  void keep(int bucket);

  int count() const { return static_cast<int>(buckets_.size()); }
  // Is to be read when it has been provided only.
  const torch::Tensor& bucket(int b) const { return buckets_[b]; }
  // This rank's part. `finish_gathers` comes before it is written to, `publish` after that.
  const torch::Tensor& shard(int b) const { return shards_[b]; }

  // What is computed from now on finds the bucket whole. Collective where the plan splits parameters.
  void provide(int b);
  // Gathers that are under way end first: they read the shards, and may write the own part of a bucket back to where it
  // was read.
  void finish_gathers();
  // What was written to the shards is what will be provided. Collective.
  void publish();

  // Split buckets that have memory at once, at most. A layer's weight and bias may lie in two (nn::Layer).
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
