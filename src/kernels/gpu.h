#pragma once

// What ops.cpp needs of CUDA. Chosen by CMake: gpu_cuda.cpp, or gpu_none.cpp, which also stands in for the .cu files.
namespace millrace::kernels {

// The stream (cudaStream_t) that LibTorch uses on a device now.
void* current_stream(int device);
// c10::AcceleratorError when a launch before failed, or a kernel that has run meanwhile.
void check_launches();

}  // namespace millrace::kernels
