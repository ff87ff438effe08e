#include "bias_kernel.h"
#include "cuda_launch.h"

namespace millrace::kernels {

void add_bias_cuda(const AddBias& arguments, void* stream) {
  run_add_bias(arguments, CudaLauncher{stream});
}
void bias_gradient_cuda(const BiasGradient& arguments, void* stream) {
  run_bias_gradient(arguments, CudaLauncher{stream});
}

}  // namespace millrace::kernels
