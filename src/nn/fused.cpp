#include "millrace/nn/fused.h"

namespace millrace::nn {

static FusedKernels used = FusedKernels::on_gpus;

void use_fused_kernels(FusedKernels where) {
  used = where;
}

bool fused_kernels_on(torch::Device device) {
  return used == FusedKernels::everywhere || (used == FusedKernels::on_gpus && device.is_cuda());
}

bool cpu_kernels_are_on() {
  return used == FusedKernels::on_gpus;
}

bool own_kernels_are_on() {
  return used != FusedKernels::nowhere;
}

}  // namespace millrace::nn
