#pragma once
#include <torch/types.h>

#include <string>

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

// Whether our own group norm and GEGLU, where they are on, take outputs of so many channels: those of src/kernels take
// all, those of nn/cpu multiples of 8.
inline bool own_kernels_take(torch::DeviceType device, std::int64_t channels) {
  return device != torch::kCPU || channels % 8 == 0;
}

// Norms and GEGLUs that this process has computed so far where those of src/kernels are on, as "132 by our kernels, 0
// by LibTorch's". Empty: there were none. LibTorch's are those whose input does not lie as our kernels want it: slower,
// and a group norm in 16 bits has statistics in 16 bits.
std::string norm_kernels();
// Counts one.
void note_norm(torch::Device device, bool is_by_own_kernel);

}  // namespace millrace::nn
