#pragma once
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace millrace::test {

// Counts the bytes of the tensors in host memory that this thread makes and lets go of, by the way of LibTorch's
// profiler; backward runs in the thread that calls it. What was made before does not count.
class LiveMemory {
 public:
  std::int64_t bytes() const { return counter_->live; }
  // The most since the beginning, or since `forget_peak`.
  std::int64_t peak() const { return counter_->peak; }
  void forget_peak() { counter_->peak = counter_->live; }

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*block*/, std::int64_t bytes, std::size_t /*allocated*/, std::size_t /*reserved*/,
                           c10::Device /*device*/) override {
      live += bytes;
      peak = std::max(peak, live);
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::int64_t live = 0, peak = 0;
  };

  std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, counter_};
};

}  // namespace millrace::test
