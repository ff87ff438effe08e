#pragma once
#include <torch/types.h>

#include <cstdint>
#include <string>

namespace millrace {

// Which GPU it is, and what is free on it now.
struct GpuIdentity {
  std::string uuid;  // "GPU-1c2f...", the same for every process that uses it
  std::uint64_t free_bytes = 0, total_bytes = 0;
};

// Of a CUDA device.
GpuIdentity gpu_identity(torch::Device device);

}  // namespace millrace
