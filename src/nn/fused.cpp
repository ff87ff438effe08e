#include "millrace/nn/fused.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdint>

namespace millrace::nn {

static FusedKernels used = FusedKernels::by_device;
static std::atomic<std::int64_t> norms_by_own = 0, norms_by_libtorch = 0;

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

std::string norm_kernels() {
  if (norms_by_own == 0 && norms_by_libtorch == 0) return "";
  return fmt::format("{} by our kernels, {} by LibTorch's", norms_by_own.load(), norms_by_libtorch.load());
}

void note_norm(torch::Device device, bool is_by_own_kernel) {
  if (fused_kernels_on(device)) ++(is_by_own_kernel ? norms_by_own : norms_by_libtorch);
}

}  // namespace millrace::nn
