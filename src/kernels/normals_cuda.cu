#include "cuda_launch.h"
#include "normals_kernel.h"

namespace millrace::kernels {

void run_cuda(const Normals& arguments, void* stream) {
  launch_kernels(arguments, CudaLauncher{stream});
}

}  // namespace millrace::kernels
