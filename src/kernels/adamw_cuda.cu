#include "adamw_kernel.h"
#include "cuda_launch.h"

namespace millrace::kernels {

void square_sum_cuda(const SquareSum& arguments, void* stream) {
  run_square_sum(arguments, CudaLauncher{stream});
}
void adamw_cuda(const Adamw& arguments, void* stream) {
  run_adamw(arguments, CudaLauncher{stream});
}

}  // namespace millrace::kernels
