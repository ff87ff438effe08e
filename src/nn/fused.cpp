#include "millrace/nn/fused.h"

namespace millrace::nn {

static FusedKernels used = FusedKernels::by_device;

void use_fused_kernels(FusedKernels where) {
  used = where;
}

bool fused_kernels_on(torch::Device device) {
  return used == FusedKernels::everywhere || (used == FusedKernels::by_device && device.is_cuda());
}

bool cpu_kernels_are_on() {
  return used == FusedKernels::by_device;
}

bool own_kernels_are_on() {
  return used != FusedKernels::nowhere;
}

}  // namespace millrace::nn
