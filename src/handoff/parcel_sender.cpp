#include "millrace/handoff/parcel_sender.h"

#include <exception>

#include "millrace/comm/agree.h"
#include "millrace/core/log.h"

namespace millrace {

bool ParcelSender::send(int trainer, std::span<const std::byte> bytes, const std::function<bool()>& leave) {
  if (try_send(trainer, bytes)) return true;
  Backoff backoff;
  bool sent = false;
  while (!sent && !stopped(trainer) && !(leave && leave())) {
    wait_for_slot(trainer, backoff);
    sent = try_send(trainer, bytes);
  }
  stall_seconds_ += backoff.seconds();
  return sent;
}

bool ParcelSender::all_stopped() const {
  for (int trainer = 0; trainer < trainers_; ++trainer) {
    if (!stopped(trainer)) return false;
  }
  return true;
}

void tell_errors_of(ParcelSender& sender, const std::function<void()>& produce) {
  try {
    produce();
  } catch (...) {
    const auto cause = std::current_exception();
    try {
      sender.finish(present_error());
    } catch (const Error& late) {
      log::warning("{}", late.what());
    }
    std::rethrow_exception(cause);
  }
}

}  // namespace millrace
