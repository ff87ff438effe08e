#include "adamw_kernel.h"
#include "cpu_launch.h"

namespace millrace::kernels {

void run_cpu(const SquareSum& arguments) {
  launch_kernels(arguments, CpuLauncher{});
}
void run_cpu(const Adamw& arguments) {
  launch_kernels(arguments, CpuLauncher{});
}

}  // namespace millrace::kernels
