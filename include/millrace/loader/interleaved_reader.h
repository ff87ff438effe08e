#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <vector>

#include "millrace/loader/stripe_stream.h"

namespace millrace {

// How many samples of a stripe travel together: those of `steps` training steps.
struct ParcelSize {
  int samples_per_step = 1;  // of one stripe
  int steps = 1;

  int samples() const { return samples_per_step * steps; }
};

struct NextParcel {
  std::uint32_t stripe = 0;
  int samples = 0;
};

// The order in which one producer makes and sends its parcels: by the step that needs them first, then by stripe. First
// parcels serve 1, 2, ... `steps` steps in turn from stripe to stripe, all later ones serve `steps`. So every step
// needs a few new parcels, instead of each n-th step all of them: trainers start sooner, and neither side waits in
// bursts.
class ParcelOrder {
 public:
  ParcelOrder(const std::vector<std::uint32_t>& stripes, ParcelSize size);

  // There must be a stripe left.
  NextParcel next();
  // This stripe has no more samples.
  void remove(std::uint32_t stripe);
  bool empty() const { return due_.empty(); }

 private:
  struct Due {
    std::uint64_t step;  // the first that needs it
    std::uint32_t stripe;
    int steps;  // how many it serves
    auto operator<=>(const Due&) const = default;
  };
  const ParcelSize size_;
  std::set<Due> due_;  // the next parcel of every stripe
};

// A stream's samples in the order of their parcels. It tells the stream `ahead` samples in advance which stripe's
// sample comes, so that these are ready.
class InterleavedReader {
 public:
  // The stream must own the stripes, and outlive this.
  InterleavedReader(StripeStream& stream, const std::vector<std::uint32_t>& stripes, ParcelSize size, int ahead);

  // Nothing once all stripes have ended.
  std::optional<TransformedSample> next();
  // One more sample of this stripe, in place of one that was given and cannot be used; nothing when the stripe has
  // ended.
  std::optional<TransformedSample> replacement(std::uint32_t stripe);

 private:
  void look_ahead();

  StripeStream& stream_;
  ParcelOrder order_;
  const std::size_t ahead_;
  NextParcel looked_at_;                // what is left of the last one
  std::deque<std::uint32_t> upcoming_;  // stripe of each sample to come
};

}  // namespace millrace
