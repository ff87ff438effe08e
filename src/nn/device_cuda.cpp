#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "device_gpu.h"

namespace millrace::gpu {

int count() {
  return c10::cuda::device_count();
}
std::string why_none() {
  return "no usable GPU or driver on this machine";
}

void synchronize(int index) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
  c10::cuda::device_synchronize();
}

std::uint64_t peak_memory_bytes(int index) {
  using c10::CachingAllocator::StatType;
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(index));
  return static_cast<std::uint64_t>(stats.allocated_bytes[static_cast<std::size_t>(StatType::AGGREGATE)].peak);
}

std::string name(int index) {
  return at::cuda::getDeviceProperties(index)->name;
}

}  // namespace millrace::gpu
