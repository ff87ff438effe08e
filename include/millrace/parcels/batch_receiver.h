#pragma once
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "millrace/handoff/parcel_receiver.h"
#include "millrace/loader/ledger.h"
#include "millrace/parcels/parcel_bytes.h"

namespace millrace {

// A trainer's local batches, put together from the parcels of its producers.
class BatchReceiver {
 public:
  // `producer_of`: per own stripe, the position of its producer in the receiver's list.
  BatchReceiver(ParcelReceiver& receiver, const std::map<std::uint32_t, int>& producer_of, int samples_per_stripe,
                double limit_seconds);

  // samples_per_stripe samples of each stripe, stripes in order. Error(timeout) when nothing arrives within the limit.
  EncodedBatch next();

  // What producers have added to the ledger since the last call.
  LedgerDelta take_ledger_delta();
  // The latest report of each producer, by its position.
  const std::map<int, ProducerReport>& reports() const { return reports_; }

 private:
  // What has arrived of one stripe and is not used yet.
  struct IncomingStripe {
    int producer = 0;
    std::deque<EncodedBatch> batches;
    int samples = 0;
  };
  bool lacks(int producer) const { return short_stripes_.at(producer) > 0; }
  void receive_until_nothing_lacks();
  bool unpack_held();
  [[noreturn]] void give_up() const;
  void unpack(const Parcel& parcel);
  void take(IncomingStripe& incoming, std::vector<EncodedBatch>& pieces);

  ParcelReceiver& receiver_;
  const int samples_per_stripe_;
  const double limit_seconds_;
  std::map<std::uint32_t, IncomingStripe> stripes_;  // own stripes, in order
  std::map<int, int> short_stripes_;                 // per producer: its stripes with less than the next step needs
  // NOTE [Held parcels] A parcel of a producer that lacks nothing stays in its slot: a producer that runs ahead is then
  // held back by its own full ring, and never fills the trainer's memory while another one is awaited. As soon as its
  // producer lacks something, it is taken out, whichever stripe is awaited: see NOTE [Order of parcels] in
  // producer.cpp.
  std::map<int, std::deque<Parcel>> held_;
  std::map<int, ProducerReport> reports_;
  LedgerDelta delta_;
};

}  // namespace millrace
