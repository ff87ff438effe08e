#include "group_norm_silu.h"

#include "group_norm_silu_kernel.h"

namespace millrace::kernels {

std::int64_t group_norm_silu_workspace(const GroupNormShape& shape) {
  return floats_of_workspace(shape) * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace millrace::kernels
