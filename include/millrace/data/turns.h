#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "millrace/data/stream.h"

namespace millrace {

// Whose turn it is: always the stripe that is furthest behind, so that whoever waits for samples never gets much more
// of one stripe than of another. Counted in whole parcels: one stripe's parcel is finished before the next stripe's is
// begun.
class StripeTurns {
 public:
  StripeTurns(const std::vector<std::uint32_t>& stripes, int parcel_samples);

  // The stripe to take the next sample from; it counts as taken. There must be one left.
  std::uint32_t next();
  // A sample of this stripe was dropped and does not count.
  void put_back(std::uint32_t stripe) { --taken_.at(stripe); }
  // This stripe has no more samples.
  void remove(std::uint32_t stripe) { taken_.erase(stripe); }
  bool empty() const { return taken_.empty(); }

 private:
  const std::uint64_t parcel_samples_;
  std::map<std::uint32_t, std::uint64_t> taken_;
};

// A stream's samples by turns. The stream is told `ahead` samples before whose turn will come, and has that many ready.
class TurnReader {
 public:
  // The stream must own the stripes, and outlive this.
  TurnReader(StripeStream& stream, const std::vector<std::uint32_t>& stripes, int parcel_samples, int ahead);

  // Nothing once all stripes have ended.
  std::optional<TransformedSample> next();
  // A sample of this stripe was dropped and will be made up for.
  void put_back(std::uint32_t stripe) { turns_.put_back(stripe); }

 private:
  void look_ahead();

  StripeStream& stream_;
  StripeTurns turns_;
  const std::size_t ahead_;
  std::deque<std::uint32_t> upcoming_;
};

}  // namespace millrace
