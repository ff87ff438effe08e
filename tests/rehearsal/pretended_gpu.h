#pragma once
#include <functional>
#include <string>

#include "nccl.h"

namespace pretended {

// Work in order, by a thread of its own, or at once by whoever brings it, as a CPU computes.
class Stream {
 public:
  enum class Kind { thread, at_once };
  // On the thread's current GPU; one that computes at once is on all of them.
  explicit Stream(Kind kind);
  ~Stream() = delete;  // it lives until the process ends
  void push(std::function<void()> work);
  void synchronize();
  bool is_on(int device) const { return device_ < 0 || device_ == device; }

 private:
  struct Queue;
  Queue* queue_ = nullptr;  // none: at once
  int device_ = -1;
};

// The one that computes at once.
void* host_stream(int device);
// Of this thread.
int present_gpu();
// Up to some time that chance gives.
void nap();

// What goes wrong from now on, in this process: every look at an event, or at a communicator.
void fail_gpu(cudaError_t code);
void fail_nccl(ncclResult_t code, std::string why);
void mend();

}  // namespace pretended
