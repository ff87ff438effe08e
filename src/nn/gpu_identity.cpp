#include "millrace/nn/gpu_identity.h"

#include "device_gpu.h"

namespace millrace {

GpuIdentity gpu_identity(torch::Device device) {
  return gpu::identity(device.index());
}

}  // namespace millrace
