#pragma once
#include <torch/types.h>

namespace millrace::nn {

// Who computes norms, GEGLU and the optimizer's step: the program's own kernels (src/kernels), each of which does in
// one pass over memory what LibTorch does in several, or LibTorch. on_gpus: on CPUs there are others, made for them
// (nn/cpu). `everywhere` is for tests: on CPUs the kernels' twins are slow.
enum class FusedKernels { nowhere, on_gpus, everywhere };

// At the start of a program; on_gpus until then.
void use_fused_kernels(FusedKernels where);
bool fused_kernels_on(torch::Device device);
bool cpu_kernels_are_on();
// Those of some device, that is unless FusedKernels::nowhere.
bool own_kernels_are_on();

}  // namespace millrace::nn
