#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

struct ParameterSpec {
  std::string name;
  std::vector<std::int64_t> shape;
  bool channels_last = false;  // a 4-d weight (O,I,H,W) whose elements lie in the order O,H,W,I

  std::int64_t elements() const;
};

// One parameter inside a bucket.
struct Placement {
  int parameter;        // index into FlatLayout::parameters
  std::int64_t offset;  // first element in the bucket
};

// Consecutive parameters in one flat piece of memory, padded so that all shards are equal.
struct FlatBucket {
  std::int64_t elements = 0;  // with padding
  std::vector<Placement> placements;
};

struct FlatLayout {
  std::vector<ParameterSpec> parameters;
  std::vector<FlatBucket> buckets;
  int shards = 1;

  std::int64_t shard_elements(int bucket) const { return buckets[bucket].elements / shards; }
};

// Parameters in execution order -> buckets of whole parameters, filled up to `bucket_elements` (a larger parameter has
// its own).
FlatLayout plan_flat_layout(std::vector<ParameterSpec> parameters, std::int64_t bucket_elements, int shards);

// A run of elements of one parameter that one shard holds, in storage order (see ParameterSpec::channels_last).
struct Slice {
  std::string name;
  std::vector<std::int64_t> shape;
  bool channels_last;
  std::int64_t begin, end;  // elements of the flattened parameter
  int bucket;
  std::int64_t shard_offset;  // where `begin` lies in the shard of this bucket
};

// What shard `shard` holds, in order; over all shards every element of every parameter occurs exactly once.
std::vector<Slice> slices_of_shard(const FlatLayout& layout, int shard);
// Part `index` when `slices` are cut into `parts` parts whose sizes differ by one element at most.
std::vector<Slice> equal_part(const std::vector<Slice>& slices, int index, int parts);

}  // namespace millrace
