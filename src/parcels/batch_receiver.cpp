#include "millrace/parcels/batch_receiver.h"

#include <algorithm>

#include "millrace/core/error.h"
#include "millrace/encode/encoder.h"

namespace millrace {

BatchReceiver::BatchReceiver(ParcelReceiver& receiver, const std::map<std::uint32_t, int>& producer_of,
                             int samples_per_stripe, bool pinned)
    : receiver_(receiver), samples_per_stripe_(samples_per_stripe), pinned_(pinned) {
  for (const auto& [stripe, producer] : producer_of) {
    stripes_[stripe].producer = producer;
    ++short_stripes_[producer];
  }
}

std::optional<EncodedBatch> BatchReceiver::next(double seconds) {
  if (!receive_until_nothing_lacks(seconds)) return std::nullopt;
  since_arrival_ = Stopwatch();
  std::vector<EncodedBatch> pieces;
  for (auto& [stripe, incoming] : stripes_) take(incoming, pieces);
  receiver_.poll();
  return concatenate(std::move(pieces), pinned_);
}

bool BatchReceiver::receive_until_nothing_lacks(double seconds) {
  const auto something_lacks = [&] {
    return std::ranges::any_of(short_stripes_, [](const auto& entry) { return entry.second > 0; });
  };
  const Stopwatch waiting;
  while (something_lacks()) {
    if (unpack_held()) continue;
    const double left = seconds - waiting.seconds();
    if (auto parcel = receiver_.receive(std::max(0.0, left))) {
      const int from = parcel->producer();
      if (lacks(from)) {
        unpack(*parcel);
        since_arrival_ = Stopwatch();
      } else {
        held_[from].push_back(std::move(*parcel));
      }
    } else if (left <= 0) {
      return false;
    }
  }
  return true;
}

std::optional<std::uint32_t> BatchReceiver::overdue_stripe(double seconds) const {
  if (since_arrival_.seconds() < seconds) return std::nullopt;
  for (const auto& [stripe, incoming] : stripes_)
    if (incoming.samples < samples_per_stripe_) return stripe;
  return std::nullopt;
}

// One parcel that waits in its slot and whose producer lacks something now.
bool BatchReceiver::unpack_held() {
  for (auto& [producer, parcels] : held_) {
    if (parcels.empty() || !lacks(producer)) continue;
    unpack(parcels.front());
    parcels.pop_front();
    return true;
  }
  return false;
}

void BatchReceiver::unpack(const Parcel& parcel) {
  auto content = unpack_parcel(parcel.bytes());
  reports_[parcel.producer()] = content.report;
  if (!content.ledger_delta.empty()) delta_.append(LedgerDelta::from_bytes(content.ledger_delta));
  IncomingStripe& incoming = stripes_.at(content.stripe);
  const bool was_short = incoming.samples < samples_per_stripe_;
  incoming.samples += static_cast<int>(content.batch.refs.size());
  if (was_short && incoming.samples >= samples_per_stripe_) --short_stripes_.at(incoming.producer);
  incoming.batches.push_back(std::move(content.batch));
}

// Moves the next samples of a stripe to `pieces`; what is left of a batch stays in front.
void BatchReceiver::take(IncomingStripe& incoming, std::vector<EncodedBatch>& pieces) {
  int wanted = samples_per_stripe_;
  incoming.samples -= wanted;
  if (incoming.samples < samples_per_stripe_) ++short_stripes_.at(incoming.producer);
  while (wanted > 0) {
    EncodedBatch& front = incoming.batches.front();
    const auto there = static_cast<int>(front.refs.size());
    const auto taken = std::min(wanted, there);
    pieces.push_back({{front.refs.begin(), front.refs.begin() + taken},
                      front.moments.slice(0, 0, taken),
                      front.text.slice(0, 0, taken)});
    wanted -= taken;
    if (taken == there) {
      incoming.batches.pop_front();
    } else {
      front.refs.erase(front.refs.begin(), front.refs.begin() + taken);
      front.moments = front.moments.slice(0, taken);
      front.text = front.text.slice(0, taken);
    }
  }
}

LedgerDelta BatchReceiver::take_ledger_delta() {
  return std::exchange(delta_, {});
}

}  // namespace millrace
