#pragma once
#include <memory>

#include "millrace/handoff/parcel.h"
#include "millrace/handoff/parcel_receiver.h"
#include "millrace/handoff/parcel_sender.h"

namespace millrace {

// Both ends in one process, each used by its own thread: one producer, one trainer, the same meaning of every call.
struct InProcessHandoff {
  std::unique_ptr<ParcelSender> sender;
  std::unique_ptr<ParcelReceiver> receiver;
};
InProcessHandoff make_in_process_handoff(HandoffSize size);

}  // namespace millrace
