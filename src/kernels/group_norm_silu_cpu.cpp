#include "cpu_launch.h"
#include "group_norm_silu_kernel.h"

namespace millrace::kernels {

void run_cpu(const GroupNormSilu& arguments) {
  launch_kernels(arguments, CpuLauncher{});
}
void run_cpu(const GroupNormSiluBackward& arguments) {
  launch_kernels(arguments, CpuLauncher{});
}

}  // namespace millrace::kernels
