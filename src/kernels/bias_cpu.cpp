#include "bias_kernel.h"
#include "cpu_launch.h"

namespace millrace::kernels {

void add_bias_cpu(const AddBias& arguments) {
  run_add_bias(arguments, CpuLauncher{});
}
void bias_gradient_cpu(const BiasGradient& arguments) {
  run_bias_gradient(arguments, CpuLauncher{});
}

}  // namespace millrace::kernels
