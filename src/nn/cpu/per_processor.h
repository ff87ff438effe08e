#pragma once
#include <cstdint>

#include "cpu/attention_small.h"
#include "cpu/geglu.h"
#include "cpu/group_norm.h"

namespace millrace::nn {

// The kernels in the instructions of one kind of processor.
struct CpuKernels {
  std::int64_t width;  // floats in a register
  AttentionKernel attention;
  GroupNormKernel group_norm;
  GegluKernel geglu;
};

const CpuKernels& portable_kernels();
// Those of this processor with the widest registers that divide `size`, which is a multiple of 8; none wider than what
// LibTorch uses, so that its variable ATEN_CPU_CAPABILITY (default, avx2 or avx512) limits both. The same bits come out
// of registers of 8 and of 16.
const CpuKernels& best_kernels(std::int64_t size);

}  // namespace millrace::nn
