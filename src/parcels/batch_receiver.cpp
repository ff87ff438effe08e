#include "millrace/parcels/batch_receiver.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace millrace {

BatchReceiver::BatchReceiver(ParcelReceiver& receiver, const std::map<std::uint32_t, int>& producer_of,
                             int samples_per_stripe, bool pinned)
    : receiver_(receiver), samples_per_stripe_(samples_per_stripe), pinned_(pinned) {
  for (const auto& [stripe, producer] : producer_of) {
    const auto row = samples_per_stripe * std::ssize(stripes_);
    stripes_[stripe] = {producer, row};
    ++short_stripes_[producer];
  }
}

std::optional<EncodedBatch> BatchReceiver::next(double seconds) {
  if (!receive_until_nothing_lacks(seconds)) return std::nullopt;
  receiver_.poll();
  since_arrival_ = Stopwatch();
  for (auto& [stripe, incoming] : stripes_) {
    incoming.samples -= samples_per_stripe_;
    if (incoming.samples < samples_per_stripe_) ++short_stripes_.at(incoming.producer);
  }
  EncodedBatch batch = std::move(batches_.front());
  batches_.pop_front();
  return batch;
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
  const auto view = read_parcel(parcel.bytes());
  reports_[parcel.producer()] = view.report;
  if (!view.ledger_delta.empty()) delta_.append(LedgerDelta::from_bytes(view.ledger_delta));
  IncomingStripe& incoming = stripes_.at(view.stripe);
  place(view, incoming);
  const bool was_short = incoming.samples < samples_per_stripe_;
  incoming.samples += std::ssize(view.refs);
  if (was_short && incoming.samples >= samples_per_stripe_) --short_stripes_.at(incoming.producer);
}

// Behind what has arrived of the same stripe.
void BatchReceiver::place(const ParcelView& parcel, const IncomingStripe& incoming) {
  const std::int64_t per_step = samples_per_stripe_, samples = std::ssize(parcel.refs);
  for (std::int64_t first = 0, count; first < samples; first += count) {
    const auto [step, before] = std::ldiv(incoming.samples + first, per_step);
    count = std::min(per_step - before, samples - first);
    parcel.copy(first, count, batch_of_step(step, parcel.shape), incoming.row + before);
  }
}

// `step`: how many others come before it.
EncodedBatch& BatchReceiver::batch_of_step(std::int64_t step, const EncodingShape& shape) {
  while (std::ssize(batches_) <= step)
    batches_.push_back(make_empty_batch(samples_per_stripe_ * std::ssize(stripes_), shape, pinned_));
  return batches_[step];
}

LedgerDelta BatchReceiver::take_ledger_delta() {
  return std::exchange(delta_, {});
}

}  // namespace millrace
