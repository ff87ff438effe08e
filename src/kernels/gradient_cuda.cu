#include "cuda_launch.h"
#include "gradient_kernel.h"

namespace millrace::kernels {

void sum_gradient_cuda(const SumGradient& arguments, void* stream) {
  run_sum_gradient(arguments, CudaLauncher{stream});
}

}  // namespace millrace::kernels
