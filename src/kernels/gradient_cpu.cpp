#include "cpu_launch.h"
#include "gradient_kernel.h"

namespace millrace::kernels {

void run_cpu(const SumGradient& arguments) {
  launch_kernels(arguments, CpuLauncher{});
}

}  // namespace millrace::kernels
