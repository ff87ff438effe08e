#include "cpu_launch.h"
#include "geglu_kernel.h"

namespace millrace::kernels {

void run_cpu(const Geglu& arguments) {
  launch_kernels(arguments, CpuLauncher{});
}
void run_cpu(const GegluBackward& arguments) {
  launch_kernels(arguments, CpuLauncher{});
}

}  // namespace millrace::kernels
