#pragma once
#include <torch/types.h>

namespace millrace::nn {

// Who computes norms, GEGLU and the optimizer's step: the program's own kernels, each of which does in one pass over
// memory what LibTorch does in several, or LibTorch. by_device: on GPUs those of src/kernels, on CPUs those of nn/cpu,
// made for them. `everywhere` those of src/kernels, for tests: on CPUs their twins are slow.
enum class FusedKernels { nowhere, by_device, everywhere };

// At the start of a program; by_device until then.
void use_fused_kernels(FusedKernels where);
// Those of src/kernels, and those of nn/cpu.
bool fused_kernels_on(torch::Device device);
bool cpu_kernels_are_on();
// The ones or the others.
bool own_kernels_are_on();

}  // namespace millrace::nn
