#pragma once
#include <deque>
#include <map>
#include <optional>

#include "millrace/core/stopwatch.h"
#include "millrace/handoff/parcel_receiver.h"
#include "millrace/loader/ledger_delta.h"
#include "millrace/parcels/parcel_bytes.h"

namespace millrace {

// A trainer's local batches, put together from the parcels of its producers.
class BatchReceiver {
 public:
  // `producer_of`: per own stripe, the position of its producer in the receiver's list. `pinned`: as in
  // make_empty_batch.
  BatchReceiver(ParcelReceiver& receiver, const std::map<std::uint32_t, int>& producer_of, int samples_per_stripe,
                bool pinned = false);

  // The next local batch: samples_per_stripe samples of each stripe, stripes in order; nothing if they are not all
  // there within `seconds`. What has arrived then waits here for the next call.
  std::optional<EncodedBatch> next(double seconds);
  // A stripe whose samples were missing in the last next(), if nothing that was missing has arrived for `seconds`.
  std::optional<std::uint32_t> overdue_stripe(double seconds) const;
  // Its producer's position in the receiver's list.
  int producer_of(std::uint32_t stripe) const { return stripes_.at(stripe).producer; }

  // What producers have added to the ledger since the last call.
  LedgerDelta take_ledger_delta();
  // The latest report of each producer, by its position.
  const std::map<int, ProducerReport>& reports() const { return reports_; }

 private:
  struct IncomingStripe {
    int producer = 0;
    std::int64_t row = 0;      // of its first sample in every batch
    std::int64_t samples = 0;  // that have arrived and are not used yet
  };
  bool lacks(int producer) const { return short_stripes_.at(producer) > 0; }
  bool receive_until_nothing_lacks(double seconds);
  bool unpack_held();
  void unpack(const Parcel& parcel);
  void place(const ParcelView& parcel, const IncomingStripe& incoming);
  EncodedBatch& batch_of_step(std::int64_t step, const EncodingShape& shape);

  ParcelReceiver& receiver_;
  const int samples_per_stripe_;
  const bool pinned_;
  std::map<std::uint32_t, IncomingStripe> stripes_;  // own stripes, in order
  // Batches of the steps to come, the next one in front; each is made when its first sample arrives. So a parcel's
  // samples are copied once, from its slot to their places in the batches that they are trained in.
  std::deque<EncodedBatch> batches_;
  std::map<int, int> short_stripes_;  // per producer: how many of its stripes have less than the next step needs
  // NOTE [Held parcels] A parcel of a producer from which nothing is missing stays in its slot. So a producer that runs
  // ahead is held back by its own full ring, and never fills the trainer's memory while another one is awaited. As soon
  // as something from that producer is missing, it is taken out, whichever stripe is awaited:
  // NOTE [Order of parcels] in producer.cpp.
  std::map<int, std::deque<Parcel>> held_;
  std::map<int, ProducerReport> reports_;
  LedgerDelta delta_;
  Stopwatch since_arrival_;  // of something that was missing
};

}  // namespace millrace
