#include "cpu_launch.h"
#include "layer_norm_kernel.h"

namespace millrace::kernels {

void run_cpu(const LayerNorm& arguments) {
  launch_kernels(arguments, CpuLauncher{});
}
void run_cpu(const LayerNormBackward& arguments) {
  launch_kernels(arguments, CpuLauncher{});
}

}  // namespace millrace::kernels
