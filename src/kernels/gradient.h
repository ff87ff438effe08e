#pragma once
#include <cstdint>

#include "element.h"

// A parameter's gradient goes into the float32 sum over micro-batches, flat.
namespace millrace::kernels {

struct SumGradient {
  std::int64_t n;
  Values gradient;  // (n)
  float* sum;       // (n)
  bool replaces;    // instead of being added
};
void run_cpu(const SumGradient& arguments);
void run_cuda(const SumGradient& arguments, void* stream);

}  // namespace millrace::kernels
