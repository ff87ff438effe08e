#include "cpu_launch.h"
#include "group_norm_silu_kernel.h"

namespace millrace::kernels {

void group_norm_silu_cpu(const GroupNormSilu& arguments) {
  run_group_norm_silu(arguments, CpuLauncher{});
}
void group_norm_silu_backward_cpu(const GroupNormSiluBackward& arguments) {
  run_group_norm_silu_backward(arguments, CpuLauncher{});
}

}  // namespace millrace::kernels
