#include "cuda_launch.h"
#include "group_norm_silu_kernel.h"

namespace millrace::kernels {

void group_norm_silu_cuda(const GroupNormSilu& arguments, void* stream) {
  run_group_norm_silu(arguments, CudaLauncher{stream});
}
void group_norm_silu_backward_cuda(const GroupNormSiluBackward& arguments, void* stream) {
  run_group_norm_silu_backward(arguments, CudaLauncher{stream});
}

}  // namespace millrace::kernels
