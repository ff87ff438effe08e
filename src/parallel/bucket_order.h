#pragma once
#include <vector>

namespace millrace {

// Tracks when buckets have all their gradients, and the order in which they are reduced: from the last to the first.
// Collectives need one order of calls on all ranks, and autograd does not promise one.
class BucketOrder {
 public:
  // `gradients[b]`: the gradients that arrive in bucket b in one backward pass.
  explicit BucketOrder(std::vector<int> gradients);

  // Begins a round of that many backward passes.
  void begin(int backwards);
  // A gradient has arrived in this bucket. Returns the buckets to reduce now, in order. Error(bug) for one gradient too
  // many.
  std::vector<int> arrived(int bucket);
  // The remaining buckets, which lack gradients or wait for one that does, in order; none is left afterwards.
  std::vector<int> rest();

 private:
  std::vector<int> gradients_;
  std::vector<int> missing_;
  int reduced_from_ = 0;  // this bucket and all behind it have been reduced
};

}  // namespace millrace
