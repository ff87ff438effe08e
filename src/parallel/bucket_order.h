#pragma once
#include <vector>

namespace millrace {

// When buckets have all their gradients, and in which order they are reduced: from the last to the first. Collectives
// need one order of calls on all ranks, and autograd does not promise one.
class BucketOrder {
 public:
  // `gradients[b]`: the gradients that arrive in bucket b in one backward pass.
  explicit BucketOrder(std::vector<int> gradients);

  // Begins a round of that many backward passes.
  void begin(int backwards);
  // A gradient has arrived in this bucket. The buckets that are to be reduced now, in this order. Error(bug) for one
  // gradient too many.
  std::vector<int> arrived(int bucket);
  // The buckets that still lack gradients, or wait for one that does, in their order; none is left afterwards.
  std::vector<int> rest();

 private:
  std::vector<int> gradients_;
  std::vector<int> missing_;
  int reduced_from_ = 0;  // this bucket and all behind it have been reduced
};

}  // namespace millrace
