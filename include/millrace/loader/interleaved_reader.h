#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <vector>

#include "millrace/loader/stripe_stream.h"

namespace millrace {

// How many samples of one stripe are taken in a row: those of `steps` training steps. Each such turn becomes one
// parcel.
struct TurnSize {
  int samples_per_step = 1;  // of one stripe
  int steps = 1;

  int samples() const { return samples_per_step * steps; }
};

// The samples that come next, all of one stripe.
struct Turn {
  std::uint32_t stripe = 0;
  int samples = 0;
};

// The order in which the stripes of one rank take turns: by the step that needs their samples first, then by stripe.
// The first turns of successive stripes serve 1, 2, ... `steps` steps, all later ones `steps`. So every step needs a
// few new turns, rather than every n-th step all of them: trainers start sooner, and neither side waits in bursts.
class TurnOrder {
 public:
  TurnOrder(const std::vector<std::uint32_t>& stripes, TurnSize size);

  // The next turn. There must be a stripe left.
  Turn next();
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
  const TurnSize size_;
  std::set<Due> due_;  // the next turn of every stripe
};

// Reads a stream's samples in the order of their turns, and tells the stream `ahead` samples in advance which stripes
// they come from, so that they are ready.
class InterleavedReader {
 public:
  // The stream must own the stripes, and outlive this.
  InterleavedReader(StripeStream& stream, const std::vector<std::uint32_t>& stripes, TurnSize size, int ahead);

  // Nothing once all stripes have ended.
  std::optional<TransformedSample> next();
  // One more sample of this stripe, in place of one that was given and cannot be used; nothing when the stripe has
  // ended.
  std::optional<TransformedSample> replacement(std::uint32_t stripe);

 private:
  void look_ahead();

  StripeStream& stream_;
  TurnOrder order_;
  const std::size_t ahead_;
  Turn looked_at_;                      // what is left of the last one
  std::deque<std::uint32_t> upcoming_;  // stripe of each sample to come
};

}  // namespace millrace
