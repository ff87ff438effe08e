#include "bias_kernel.h"
#include "cuda_launch.h"

namespace millrace::kernels {

void run_cuda(const AddBias& arguments, void* stream) {
  launch_kernels(arguments, CudaLauncher{stream});
}
void run_cuda(const BiasGradient& arguments, void* stream) {
  launch_kernels(arguments, CudaLauncher{stream});
}

}  // namespace millrace::kernels
