#include "cuda_launch.h"
#include "group_norm_silu_kernel.h"

namespace millrace::kernels {

void run_cuda(const GroupNormSilu& arguments, void* stream) {
  launch_kernels(arguments, CudaLauncher{stream});
}
void run_cuda(const GroupNormSiluBackward& arguments, void* stream) {
  launch_kernels(arguments, CudaLauncher{stream});
}

}  // namespace millrace::kernels
