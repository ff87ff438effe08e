#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

// What device.cpp asks about GPUs. Two implementations, chosen by CMake: device_cuda.cpp and device_cpu_only.cpp. What
// other modules ask as well lies there too: gpu_identity, and of device.h what has no device or an index.
namespace millrace::gpu {

// Whether there is a driver, and CUDA does not start: it is for an older CUDA, or the machine has a fault. Nothing else
// may come of it than an error: GPUs that stand idle are an oversight.
bool is_broken();
// The same, by a fault of the machine's.
bool has_fault();
// Of the calling thread: the device that LibTorch asks when it chooses kernels. Error(usage) for a GPU older than all
// that kernels are made for.
void use(int index);
// Of the calling thread: the process's second stream on the device, once all work there is done.
void use_own_stream(int index);
// Waits for what the calling thread has started in its stream.
void finish_own_stream(int index);
void synchronize(int index);
std::uint64_t peak_memory_bytes(int index);
std::string name(int index);
// Of the device, without beginning to use it.
std::string uuid(int index);
// As nvidia-smi writes it. With and without CUDA, in device.cpp.
std::string format_uuid(std::span<const std::byte, 16> bytes);

}  // namespace millrace::gpu
