#include "cpu_launch.h"
#include "gradient_kernel.h"

namespace millrace::kernels {

void sum_gradient_cpu(const SumGradient& arguments) {
  run_sum_gradient(arguments, CpuLauncher{});
}

}  // namespace millrace::kernels
