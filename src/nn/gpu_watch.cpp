#include "millrace/nn/gpu_watch.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "device_gpu.h"
#include "millrace/core/stopwatch.h"
#include "nvml.h"

namespace millrace {

struct GpuWatch::Impl {
  explicit Impl(void* found) : device(found), last(nvml::read(found)) {
    thread = std::jthread([this](const std::stop_token& stop) {
      std::unique_lock lock(mutex);
      while (!wake.wait_for(lock, stop, std::chrono::seconds(1), [] { return false; }) && !stop.stop_requested())
        look();
    });
  }

  // Busy and memory are as they are now; power is the energy since the last look where the GPU counts it.
  void look() {
    const auto now = nvml::read(device);
    const double seconds = since_last.lap();
    if (seconds <= 0) return;
    if (now.busy) use.busy.add(*now.busy, seconds);
    if (now.memory_gib) use.memory_gib.add(*now.memory_gib, seconds);
    if (now.joules && last.joules && *now.joules >= *last.joules) {
      use.watts.add((*now.joules - *last.joules) / seconds, seconds);
    } else if (now.watts) {
      use.watts.add(*now.watts, seconds);
    }
    last = now;
  }

  void* const device;  // nvmlDevice_t
  std::mutex mutex;
  std::condition_variable_any wake;
  GpuUse use;  // up to the last look
  nvml::Reading last;
  Stopwatch since_last;
  std::jthread thread;  // ends first
};

GpuWatch::GpuWatch(const std::string& uuid) {
  if (void* const device = nvml::find(uuid)) impl_ = std::make_unique<Impl>(device);
}

GpuWatch::~GpuWatch() = default;

GpuUse GpuWatch::use() {
  if (!impl_) return {};
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->use.is_known()) impl_->look();  // within the first second
  return impl_->use;
}

GpuState GpuWatch::state() {
  if (!impl_) return {};
  const std::lock_guard lock(impl_->mutex);
  const auto& last = impl_->last;
  return {last.clock_mhz.value_or(0), last.celsius.value_or(0), last.slowed_by.value_or(0)};
}

std::string GpuState::describe() const {
  if (clock_mhz == 0 && celsius == 0) return "";
  return fmt::format("{:.0f} MHz, {:.0f} C, throttle reasons {:#x}", clock_mhz, celsius,
                     static_cast<unsigned long long>(slowed_by));
}

std::string gpu_uuid(torch::Device device) {
  return device.is_cuda() ? gpu::uuid(device.index()) : "";
}

}  // namespace millrace
