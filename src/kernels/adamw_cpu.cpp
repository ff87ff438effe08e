#include "adamw_kernel.h"
#include "cpu_launch.h"

namespace millrace::kernels {

void square_sum_cpu(const SquareSum& arguments) {
  run_square_sum(arguments, CpuLauncher{});
}
void adamw_cpu(const Adamw& arguments) {
  run_adamw(arguments, CpuLauncher{});
}

}  // namespace millrace::kernels
