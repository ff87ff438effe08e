#include "millrace/produce/producer_thread.h"

#include <ATen/Parallel.h>

#include "millrace/comm/agree.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/handoff/in_process_handoff.h"

namespace millrace {

ProducerThread::ProducerThread(const HandoffSize& size, int threads, std::string what,
                               std::function<void(ParcelSender&)> produce) {
  auto ends = make_in_process_handoff(size);
  receiver_ = std::move(ends.receiver);
  thread_ =
      std::jthread([threads, what = std::move(what), produce = std::move(produce), sender = std::move(ends.sender)] {
        try {
          at::set_num_threads(threads);  // a thread starts with the library's default
          tell_errors_of(*sender, [&] { produce(*sender); });
        } catch (...) {  // the trainer has it
          log::debug("{}: {}", what, present_error().what());
        }
      });
}

ProducerThread::~ProducerThread() {
  receiver_->request_stop();
}

}  // namespace millrace
