#pragma once
#include <functional>
#include <string>
#include <thread>

#include "millrace/handoff/parcel_receiver.h"
#include "millrace/handoff/parcel_sender.h"

namespace millrace {

// The producer of a rank that does both: `produce` in a thread of its own, the trainer's side of the same hand-off
// here. What ends the thread comes out of the receiver.
class ProducerThread {
 public:
  // `threads`: for LibTorch's operators. `what` names the producer in the log.
  ProducerThread(const HandoffSize& size, int threads, std::string what, std::function<void(ParcelSender&)> produce);
  ~ProducerThread();  // asks it to stop, and waits

  ParcelReceiver& receiver() { return *receiver_; }

 private:
  std::unique_ptr<ParcelReceiver> receiver_;
  std::jthread thread_;
};

}  // namespace millrace
