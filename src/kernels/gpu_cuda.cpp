#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "gpu.h"

namespace millrace::kernels {

void* current_stream(int device) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
}

void check_launches() {
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace millrace::kernels
