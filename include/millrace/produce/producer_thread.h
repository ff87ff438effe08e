#pragma once
#include <functional>
#include <string>
#include <thread>

#include "millrace/handoff/parcel_receiver.h"
#include "millrace/handoff/parcel_sender.h"

namespace millrace {

// The producer of a rank that trains as well: runs `produce` in a thread of its own, and has the trainer's end of the
// same hand-off. An error that ends the thread comes out of the receiver.
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
