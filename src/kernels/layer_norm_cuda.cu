#include "cuda_launch.h"
#include "layer_norm_kernel.h"

namespace millrace::kernels {

void layer_norm_cuda(const LayerNorm& arguments, void* stream) {
  run_layer_norm(arguments, CudaLauncher{stream});
}
void layer_norm_backward_cuda(const LayerNormBackward& arguments, void* stream) {
  run_layer_norm_backward(arguments, CudaLauncher{stream});
}

}  // namespace millrace::kernels
