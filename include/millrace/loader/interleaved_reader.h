#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <vector>

#include "millrace/loader/stripe_stream.h"

namespace millrace {

// How many samples of a stripe come in a row: those of `steps` training steps. On their way to a trainer each turn is a
// parcel.
struct TurnSize {
  int samples_per_step = 1;  // of one stripe
  int steps = 1;

  int samples() const { return samples_per_step * steps; }
};

// The samples of one stripe that come next.
struct Turn {
  std::uint32_t stripe = 0;
  int samples = 0;
};

// The order in which the stripes of one rank take turns: by the step that needs their samples first, then by stripe.
// First turns serve 1, 2, ... `steps` steps from stripe to stripe, all later ones serve `steps`. So every step needs
// a few new turns, instead of each n-th step all of them: trainers start sooner, and neither side waits in bursts.
class TurnOrder {
 public:
  TurnOrder(const std::vector<std::uint32_t>& stripes, TurnSize size);

  // There must be a stripe left.
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

// A stream's samples in the order of their turns. It tells the stream `ahead` samples in advance which stripe's
// sample comes, so that these are ready.
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
