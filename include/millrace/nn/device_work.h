#pragma once
#include <c10/core/Event.h>
#include <torch/types.h>

#include <functional>
#include <optional>

namespace millrace {

// What the calling thread has started on a device up to now. The CPU has done it by then.
class DeviceWork {
 public:
  DeviceWork() = default;  // nothing
  explicit DeviceWork(torch::Device device);

  bool is_done() const { return !event_ || event_->query(); }
  // The host waits for it, in naps: CUDA's own wait would keep a core busy, which a producer has better use for.
  // `meanwhile` is called before each nap.
  void synchronize(const std::function<void()>& meanwhile = [] {}) const;
  // What the calling thread starts from now on waits for it; the host does not.
  void order_before_own() const;

 private:
  std::optional<c10::Event> event_;  // none on the CPU
};

// The tensor's values on the host, densely: from a GPU on their way into pinned memory, there once what the calling
// thread has started up to then is done.
torch::Tensor start_download(const torch::Tensor& tensor);

// A host tensor on its way to a device, beside what that computes.
class Upload {
 public:
  Upload() = default;
  // From pinned memory, if the device is a GPU.
  Upload(const torch::Tensor& tensor, torch::Device device);

  // For what the calling thread starts from now on. The host does not wait.
  torch::Tensor take();

 private:
  torch::Tensor tensor_;
  DeviceWork copied_;
};

}  // namespace millrace
