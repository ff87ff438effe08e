#include "millrace/nn/device_work.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/utils.h>

#include <chrono>
#include <thread>

#include "millrace/core/error.h"
#include "millrace/nn/device.h"

namespace millrace {
namespace {

c10::Stream own_stream(torch::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// Always the same one: the allocator keeps memory for each stream that was ever used. A process has one GPU.
c10::Stream copy_stream(torch::Device device) {
  static const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  ensure(stream.device() == device, "a process copies to one GPU");
  return stream;
}

}  // namespace

DeviceWork::DeviceWork(torch::Device device) {
  if (device.is_cpu()) return;
  event_.emplace(device.type());
  event_->record(own_stream(device));
}

void DeviceWork::synchronize(const std::function<void()>& meanwhile) const {
  while (!is_done()) {
    meanwhile();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void DeviceWork::order_before_own() const {
  if (event_) event_->block(own_stream(event_->device()));
}

torch::Tensor start_download(const torch::Tensor& tensor) {
  const auto dense = tensor.contiguous();
  if (dense.is_cpu()) return dense;
  const auto host = torch::empty(dense.sizes(), dense.options().device(torch::kCPU).pinned_memory(true));
  return host.copy_(dense, /*non_blocking=*/true);
}

Upload::Upload(const torch::Tensor& tensor, torch::Device device) {
  if (device.is_cpu()) {
    tensor_ = tensor;
    return;
  }
  const c10::StreamGuard guard(copy_stream(device));
  tensor_ = upload(tensor, device);
  copied_ = DeviceWork(device);
}

torch::Tensor Upload::take() {
  copied_.order_before_own();
  // Its memory belongs to the other stream, which must not have it back before this one is through with it.
  if (!tensor_.is_cpu()) tensor_.record_stream(own_stream(tensor_.device()));
  return std::move(tensor_);
}

}  // namespace millrace
