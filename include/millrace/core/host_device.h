#pragma once

// Marks functions that nvcc compiles for the host and the GPU, and other compilers for the host.
#if defined(__CUDACC__)
#define MILLRACE_HOST_DEVICE __host__ __device__
#else
#define MILLRACE_HOST_DEVICE
#endif
