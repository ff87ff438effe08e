#include "cuda_launch.h"
#include "normals_kernel.h"

namespace millrace::kernels {

void normals_cuda(const Normals& arguments, void* stream) {
  run_normals(arguments, CudaLauncher{stream});
}

}  // namespace millrace::kernels
