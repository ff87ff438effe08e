#pragma once
#include <ATen/record_function.h>

namespace millrace::kernels {

// From here to the end of the scope, the name of what this thread does in a profile of LibTorch (NAME with its
// namespace, as in "millrace::geglu"): kernels on a GPU and time on the CPU belong to it as to an operator of LibTorch.
// Results do not depend on it. Without a profiler it costs a look at a list of the thread.
class OpScope {
 public:
  explicit OpScope(const char* name) : record_(at::RecordScope::FUNCTION) {
    if (record_.isActive()) record_.before(name);
  }

 private:
  at::RecordFunction record_;
};

}  // namespace millrace::kernels
