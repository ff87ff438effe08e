#include "adamw_kernel.h"
#include "cuda_launch.h"

namespace millrace::kernels {

void run_cuda(const SquareSum& arguments, void* stream) {
  launch_kernels(arguments, CudaLauncher{stream});
}
void run_cuda(const Adamw& arguments, void* stream) {
  launch_kernels(arguments, CudaLauncher{stream});
}

}  // namespace millrace::kernels
