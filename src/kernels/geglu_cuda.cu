#include "cuda_launch.h"
#include "geglu_kernel.h"

namespace millrace::kernels {

void run_cuda(const Geglu& arguments, void* stream) {
  launch_kernels(arguments, CudaLauncher{stream});
}
void run_cuda(const GegluBackward& arguments, void* stream) {
  launch_kernels(arguments, CudaLauncher{stream});
}

}  // namespace millrace::kernels
