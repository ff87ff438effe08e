#include "cuda_launch.h"
#include "layer_norm_kernel.h"

namespace millrace::kernels {

void run_cuda(const LayerNorm& arguments, void* stream) {
  launch_kernels(arguments, CudaLauncher{stream});
}
void run_cuda(const LayerNormBackward& arguments, void* stream) {
  launch_kernels(arguments, CudaLauncher{stream});
}

}  // namespace millrace::kernels
