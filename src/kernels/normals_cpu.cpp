#include "cpu_launch.h"
#include "normals_kernel.h"

namespace millrace::kernels {

void run_cpu(const Normals& arguments) {
  launch_kernels(arguments, CpuLauncher{});
}

}  // namespace millrace::kernels
