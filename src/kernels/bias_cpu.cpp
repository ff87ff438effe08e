#include "bias_kernel.h"
#include "cpu_launch.h"

namespace millrace::kernels {

void run_cpu(const AddBias& arguments) {
  launch_kernels(arguments, CpuLauncher{});
}
void run_cpu(const BiasGradient& arguments) {
  launch_kernels(arguments, CpuLauncher{});
}

}  // namespace millrace::kernels
