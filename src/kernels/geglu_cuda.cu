#include "cuda_launch.h"
#include "geglu_kernel.h"

namespace millrace::kernels {

void geglu_cuda(const Geglu& arguments, void* stream) {
  run_geglu(arguments, CudaLauncher{stream});
}
void geglu_backward_cuda(const GegluBackward& arguments, void* stream) {
  run_geglu_backward(arguments, CudaLauncher{stream});
}

}  // namespace millrace::kernels
