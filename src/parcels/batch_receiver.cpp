#include "millrace/parcels/batch_receiver.h"

#include <algorithm>

#include "millrace/core/error.h"
#include "millrace/core/stopwatch.h"
#include "millrace/encode/encoder.h"

namespace millrace {

BatchReceiver::BatchReceiver(ParcelReceiver& receiver, const std::map<std::uint32_t, int>& producer_of,
                             int samples_per_stripe, double limit_seconds)
    : receiver_(receiver), samples_per_stripe_(samples_per_stripe), limit_seconds_(limit_seconds) {
  for (const auto& [stripe, producer] : producer_of) {
    stripes_[stripe].producer = producer;
    ++short_stripes_[producer];
  }
}

EncodedBatch BatchReceiver::next() {
  receive_until_nothing_lacks();
  std::vector<EncodedBatch> pieces;
  for (auto& [stripe, incoming] : stripes_) take(incoming, pieces);
  receiver_.poll();
  return concatenate(std::move(pieces));
}

void BatchReceiver::receive_until_nothing_lacks() {
  const auto something_lacks = [&] {
    return std::ranges::any_of(short_stripes_, [](const auto& entry) { return entry.second > 0; });
  };
  Stopwatch waiting;
  while (something_lacks()) {
    if (unpack_held()) continue;
    if (auto parcel = receiver_.receive(std::min(1.0, limit_seconds_))) {
      const int from = parcel->producer();
      if (lacks(from)) {
        unpack(*parcel);
        waiting = Stopwatch();
      } else {
        held_[from].push_back(std::move(*parcel));
      }
    } else if (waiting.seconds() > limit_seconds_) {
      give_up();
    }
  }
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

void BatchReceiver::give_up() const {
  const auto& [stripe, incoming] =
      *std::ranges::find_if(stripes_, [&](const auto& entry) { return entry.second.samples < samples_per_stripe_; });
  throw Error(Exit::timeout,
              fmt::format("no samples of stripe {} from {} for {:.0f} s", stripe,
                          receiver_.producer_name(incoming.producer), limit_seconds_),
              "look at that rank's log; guard.hang_timeout sets the limit");
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
