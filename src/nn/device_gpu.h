#pragma once
#include <cstdint>
#include <string>

#include "millrace/nn/gpu_identity.h"

// What device.cpp asks about GPUs. Two implementations, chosen by CMake: device_cuda.cpp and device_cpu_only.cpp.
namespace millrace::gpu {

int count();
// Why `count` is 0, as the end of a sentence.
std::string why_none();
// Of CUDA, its driver, cuDNN and NCCL, as they are in this process.
std::string versions();
void synchronize(int index);
void* compute_stream(int index);
std::uint64_t peak_memory_bytes(int index);
std::string name(int index);
GpuIdentity identity(int index);

}  // namespace millrace::gpu
