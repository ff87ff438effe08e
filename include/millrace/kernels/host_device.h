#pragma once

// As in core/philox_math.h: functions that nvcc compiles for the host and the GPU, other compilers for the host.
#if defined(__CUDACC__)
#define MILLRACE_HOST_DEVICE __host__ __device__
#else
#define MILLRACE_HOST_DEVICE
#endif

// Before a loop over rows: a GPU thread waits for the loads of several rows together.
#if defined(__CUDA_ARCH__)
#define MILLRACE_UNROLL_ROWS _Pragma("unroll 4")
#else
#define MILLRACE_UNROLL_ROWS
#endif
