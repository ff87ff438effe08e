#include "millrace/data/turns.h"

#include <algorithm>

#include "millrace/core/error.h"

namespace millrace {

StripeTurns::StripeTurns(const std::vector<std::uint32_t>& stripes, int parcel_samples)
    : parcel_samples_(static_cast<std::uint64_t>(parcel_samples)) {
  ensure(parcel_samples >= 1, "a parcel has samples");
  for (const auto stripe : stripes) taken_[stripe] = 0;
}

std::uint32_t StripeTurns::next() {
  ensure(!taken_.empty(), "there is a stripe left");
  const auto furthest_behind = std::min_element(taken_.begin(), taken_.end(), [&](const auto& a, const auto& b) {
    return a.second / parcel_samples_ < b.second / parcel_samples_;
  });
  ++furthest_behind->second;
  return furthest_behind->first;
}

TurnReader::TurnReader(StripeStream& stream, const std::vector<std::uint32_t>& stripes, int parcel_samples, int ahead)
    : stream_(stream), turns_(stripes, parcel_samples), ahead_(static_cast<std::size_t>(ahead)) {
  look_ahead();
}

void TurnReader::look_ahead() {
  while (upcoming_.size() < ahead_ && !turns_.empty()) {
    upcoming_.push_back(turns_.next());
    stream_.expect(upcoming_.back());
  }
}

std::optional<TransformedSample> TurnReader::next() {
  while (!upcoming_.empty()) {
    const auto stripe = upcoming_.front();
    upcoming_.pop_front();
    auto sample = stream_.next(stripe);
    if (!sample) {
      turns_.remove(stripe);
      std::erase(upcoming_, stripe);
    }
    look_ahead();
    if (sample) return sample;
  }
  return std::nullopt;
}

}  // namespace millrace
