#pragma once
#include <cstdint>

#include "element.h"

// One number per channel, added to rows of channels (pixels or tokens), and its gradient.
namespace millrace::kernels {

// y = x + bias + residual in one pass.
struct AddBias {
  std::int64_t rows;
  int channels;          // C
  Element element;       // of x, residual and y
  const void* x;         // (rows, C)
  Values bias;           // (C)
  const void* residual;  // (rows, C) or null
  void* y;               // (rows, C)
};
void run_cpu(const AddBias& arguments);
void run_cuda(const AddBias& arguments, void* stream);

// Bytes of `workspace`.
std::int64_t bias_gradient_workspace(std::int64_t rows, std::int64_t channels);

// The sum over the rows, in float32 and in an order that is always the same.
struct BiasGradient {
  std::int64_t rows;
  int channels;
  Element element;
  const void* y_grad;  // (rows, C)
  Target bias_grad;    // (C)
  void* workspace;
};
void run_cpu(const BiasGradient& arguments);
void run_cuda(const BiasGradient& arguments, void* stream);

}  // namespace millrace::kernels
