#pragma once
#include <cuda_runtime.h>

#include "frame.h"

// For .cu files only.
namespace millrace::kernels {

template <class T>
struct OneValue {
  T value;
  __host__ __device__ T& operator[](int) { return value; }
};

// Host versions of these members are never called: they are there because kernels are compiled for both.
class GpuBlock {
 public:
  MILLRACE_HOST_DEVICE GpuBlock() {
#if defined(__CUDA_ARCH__)
    x = blockIdx.x, y = blockIdx.y, z = blockIdx.z;
    grid = {gridDim.x, gridDim.y, gridDim.z};
#endif
  }
  template <class Phase>
  MILLRACE_HOST_DEVICE void phase(const Phase& run) {
#if defined(__CUDA_ARCH__)
    run(static_cast<int>(threadIdx.x));
    __syncthreads();
#endif
  }
  template <class T>
  MILLRACE_HOST_DEVICE OneValue<T> per_thread() const {
    return {};
  }
  MILLRACE_HOST_DEVICE void warp_sum(OneValue<float>& values) {
#if defined(__CUDA_ARCH__)
    for (int distance = warp_size / 2; distance > 0; distance /= 2)
      values.value += __shfl_xor_sync(0xFFFFFFFFu, values.value, distance);
#endif
  }

  unsigned x = 0, y = 0, z = 0;
  Grid grid;
};

template <class Kernel>
__global__ void __launch_bounds__(Kernel::threads, 1) run_kernel(const __grid_constant__ Kernel kernel) {
  __shared__ typename Kernel::Shared shared;
  GpuBlock block;
  kernel(block, shared);
}

struct CudaLauncher {
  void* stream;

  template <class Kernel>
  void operator()(const Kernel& kernel, Grid grid) const {
    run_kernel<<<dim3(grid.x, grid.y, grid.z), Kernel::threads, 0, static_cast<cudaStream_t>(stream)>>>(kernel);
  }
};

}  // namespace millrace::kernels
