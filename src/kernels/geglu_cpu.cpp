#include "cpu_launch.h"
#include "geglu_kernel.h"

namespace millrace::kernels {

void geglu_cpu(const Geglu& arguments) {
  run_geglu(arguments, CpuLauncher{});
}
void geglu_backward_cpu(const GegluBackward& arguments) {
  run_geglu_backward(arguments, CpuLauncher{});
}

}  // namespace millrace::kernels
