#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/comm/group.h"
#include "millrace/handoff/parcel.h"

namespace millrace {

// The trainer's end. Parcels of one producer arrive in the order they were sent. All calls come from one thread;
// Parcels may be released on any.
class ParcelReceiver {
 public:
  virtual ~ParcelReceiver() = default;

  // The next parcel of any producer; nothing after `timeout_seconds` (0 = only look), or when every producer has ended
  // and its last parcel has been received. A producer that ended with an error has it thrown here, after that.
  virtual std::optional<Parcel> receive(double timeout_seconds) = 0;
  // Moves messages along and hands released slots back to their producers.
  virtual void poll() = 0;
  // Tells all producers that nothing more is wanted.
  virtual void request_stop() = 0;
  // The signal that a producer was stopped by; 0 = none.
  virtual int signal_number() const = 0;
  // request_stop, then drops what still arrives until all producers have ended; Error(suspect_node) after
  // `limit_seconds`. Errors of producers are logged, not thrown. Parcels still held stay valid.
  virtual void finish(double limit_seconds = 600) = 0;
  // For messages: "the producer on rank 5".
  virtual std::string producer_name(int producer) const = 0;
  // Number of complete parcels that wait to be received.
  virtual int ready() = 0;
};

// Counterpart of make_mpi_sender.
std::unique_ptr<ParcelReceiver> make_mpi_receiver(const Group& group, std::vector<int> producer_ranks,
                                                  HandoffSize size);

}  // namespace millrace
