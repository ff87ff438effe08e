#include "millrace/loader/interleaved_reader.h"

#include <algorithm>

#include "millrace/core/error.h"

namespace millrace {

TurnOrder::TurnOrder(const std::vector<std::uint32_t>& stripes, TurnSize size) : size_(size) {
  ensure(size.samples_per_step >= 1 && size.steps >= 1, "a turn has samples");
  int first_steps = 0;
  for (const auto stripe : stripes) {
    due_.insert({0, stripe, first_steps + 1});
    first_steps = (first_steps + 1) % size.steps;
  }
}

Turn TurnOrder::next() {
  ensure(!due_.empty(), "there is a stripe left");
  const Due turn = due_.extract(due_.begin()).value();
  due_.insert({turn.step + static_cast<std::uint64_t>(turn.steps), turn.stripe, size_.steps});
  return {turn.stripe, turn.steps * size_.samples_per_step};
}

void TurnOrder::remove(std::uint32_t stripe) {
  std::erase_if(due_, [&](const Due& turn) { return turn.stripe == stripe; });
}

InterleavedReader::InterleavedReader(StripeStream& stream, const std::vector<std::uint32_t>& stripes, TurnSize size,
                                     int ahead)
    : stream_(stream), order_(stripes, size), ahead_(static_cast<std::size_t>(ahead)) {
  look_ahead();
}

void InterleavedReader::look_ahead() {
  while (upcoming_.size() < ahead_ && !order_.empty()) {
    if (looked_at_.samples == 0) looked_at_ = order_.next();
    --looked_at_.samples;
    upcoming_.push_back(looked_at_.stripe);
    stream_.expect(looked_at_.stripe);
  }
}

std::optional<TransformedSample> InterleavedReader::next() {
  while (!upcoming_.empty()) {
    const auto stripe = upcoming_.front();
    upcoming_.pop_front();
    auto sample = stream_.next(stripe);
    if (!sample) {
      order_.remove(stripe);
      std::erase(upcoming_, stripe);
      if (looked_at_.stripe == stripe) looked_at_.samples = 0;
    }
    look_ahead();
    if (sample) return sample;
  }
  return std::nullopt;
}

std::optional<TransformedSample> InterleavedReader::replacement(std::uint32_t stripe) {
  stream_.expect(stripe);
  return stream_.next(stripe);
}

}  // namespace millrace
