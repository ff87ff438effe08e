#include "cpu_launch.h"
#include "layer_norm_kernel.h"

namespace millrace::kernels {

void layer_norm_cpu(const LayerNorm& arguments) {
  run_layer_norm(arguments, CpuLauncher{});
}
void layer_norm_backward_cpu(const LayerNormBackward& arguments) {
  run_layer_norm_backward(arguments, CpuLauncher{});
}

}  // namespace millrace::kernels
