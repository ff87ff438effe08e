#pragma once
#include <functional>
#include <memory>

#include "launch/session.h"
#include "millrace/comm/fault.h"
#include "millrace/comm/group.h"
#include "millrace/handoff/parcel_receiver.h"
#include "millrace/handoff/parcel_sender.h"
#include "millrace/produce/producer_thread.h"
#include "train/input_plan.h"
#include "train/roles.h"

namespace millrace {

// Encodings on their way from producers to trainers, by the roles of the ranks. All ranks of the run take part at the
// same time: trainers receive, producers send.
struct ParcelExchange {
  const Session& session;
  const Roles& roles;
  const InputPlan& input;
  const Group& group;  // of all ranks; not used if every rank does both
  int slots = HandoffSize().slots;
  const char* name = "producer";

  // Encodes and sends as the producer of this position in Roles, until its trainers have said stop.
  using Produce = std::function<void(ParcelSender& sender, const ProducerPlan& plan)>;

  HandoffSize size() const { return {.parcel_bytes = input.parcel_bytes, .slots = slots}; }
  void run(const Produce& produce, ParcelSender& sender) const {
    produce(sender, input.of_producer(position_in(roles.producers, session.world.rank())));
  }
};

// A trainer's part: returns what `use` makes of the receiver. If the trainer is a producer as well, `produce` runs in a
// thread beside it, with the same parcels in between.
template <class Use>
auto receive_parcels(const ParcelExchange& exchange, const ParcelExchange::Produce& produce, const Use& use) {
  if (!exchange.roles.all_in_one) {
    const auto producers = peer_ranks(exchange.roles, exchange.input.routing, exchange.session.world.rank());
    const auto receiver = make_mpi_receiver(exchange.group, producers, exchange.size());
    return use(*receiver);
  }
  ProducerThread producer(exchange.size(), exchange.session.threads, exchange.name,
                          [&](ParcelSender& sender) { exchange.run(produce, sender); });
  try {
    return use(producer.receiver());
  } catch (...) {
    fault::begin_leaving();  // before the producer's thread is waited for
    throw;
  }
}

// A producer's end, for a rank that only encodes. All ranks make their ends at the same time.
inline std::unique_ptr<ParcelSender> make_sender(const ParcelExchange& exchange) {
  const auto trainers = peer_ranks(exchange.roles, exchange.input.routing, exchange.session.world.rank());
  return make_mpi_sender(exchange.group, trainers, exchange.size());
}

// Errors of `produce` reach the trainers before they are thrown here.
inline void send_parcels(const ParcelExchange& exchange, ParcelSender& sender, const ParcelExchange::Produce& produce) {
  tell_errors_of(sender, [&] { exchange.run(produce, sender); });
}

}  // namespace millrace
