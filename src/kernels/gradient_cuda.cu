#include "cuda_launch.h"
#include "gradient_kernel.h"

namespace millrace::kernels {

void run_cuda(const SumGradient& arguments, void* stream) {
  launch_kernels(arguments, CudaLauncher{stream});
}

}  // namespace millrace::kernels
