#include "bucket_order.h"

#include "millrace/core/error.h"

namespace millrace {

BucketOrder::BucketOrder(std::vector<int> gradients) : gradients_(std::move(gradients)) {}

void BucketOrder::begin(int backwards) {
  missing_ = gradients_;
  for (int& count : missing_) count *= backwards;
  reduced_from_ = static_cast<int>(missing_.size());
}

std::vector<int> BucketOrder::arrived(int bucket) {
  ensure(bucket < reduced_from_ && missing_[bucket] > 0, "a gradient comes after its bucket was reduced");
  --missing_[bucket];
  std::vector<int> ready;
  while (reduced_from_ > 0 && missing_[reduced_from_ - 1] == 0) ready.push_back(--reduced_from_);
  return ready;
}

std::vector<int> BucketOrder::rest() {
  std::vector<int> rest;
  while (reduced_from_ > 0) rest.push_back(--reduced_from_);
  return rest;
}

}  // namespace millrace
