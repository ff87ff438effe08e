#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "millrace/comm/backoff.h"
#include "millrace/comm/group.h"
#include "millrace/core/error.h"
#include "millrace/handoff/parcel.h"

namespace millrace {

// The producer's end. Trainers are named by their position in the list given at construction. All calls come from one
// thread; sends make progress only inside these calls, so a producer that computes for long calls `poll` now and then.
class ParcelSender {
 public:
  virtual ~ParcelSender() = default;

  // Copies the parcel into a free slot and starts sending it; false when the trainer holds all slots, or when it
  // stopped.
  virtual bool try_send(int trainer, std::span<const std::byte> bytes) = 0;
  // Moves pending messages along.
  virtual void poll() = 0;
  // True when this trainer wants nothing more; parcels for it are refused from now on.
  virtual bool stopped(int trainer) const = 0;
  // Tells every trainer that this process was asked to stop by a signal.
  virtual void report_signal(int signal) = 0;
  // Tells every trainer, after the parcels already on their way, that this producer ends: in order, or with an error,
  // which the trainers then throw. Between processes it waits up to `limit_seconds` for their answers;
  // Error(suspect_node) after that.
  virtual void finish(const std::optional<Error>& error = std::nullopt, double limit_seconds = 4 * 3600) = 0;

  // Waits for a free slot. False when the trainer stopped or `leave` said so (asked every now and then); the parcel is
  // then not sent.
  bool send(int trainer, std::span<const std::byte> bytes, const std::function<bool()>& leave = {});
  bool all_stopped() const;
  double stall_seconds() const { return stall_seconds_; }  // spent waiting for slots

 protected:
  explicit ParcelSender(int trainers) : trainers_(trainers) {}
  // Waits a moment, or until a slot of this trainer may be free.
  virtual void wait_for_slot(int trainer, Backoff& backoff) = 0;

 private:
  int trainers_;
  double stall_seconds_ = 0;
};

// Runs `produce`. What it throws is told to the trainers, and then thrown on.
void tell_errors_of(ParcelSender& sender, const std::function<void()>& produce);

// Producers and trainers are ranks of `group`; every rank of it must make its sender or its receiver at the same time.
std::unique_ptr<ParcelSender> make_mpi_sender(const Group& group, std::vector<int> trainer_ranks, HandoffSize size);

}  // namespace millrace
