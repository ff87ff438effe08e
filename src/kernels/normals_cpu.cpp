#include "cpu_launch.h"
#include "normals_kernel.h"

namespace millrace::kernels {

void normals_cpu(const Normals& arguments) {
  run_normals(arguments, CpuLauncher{});
}

}  // namespace millrace::kernels
