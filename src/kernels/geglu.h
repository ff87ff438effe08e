#pragma once
#include <cstdint>

#include "element.h"

// y = value * gelu(gate) with [value | gate] = x + bias, gelu by erf, to 1e-7 (Shazeer, "GLU variants improve
// transformer"). Backward needs x alone.
namespace millrace::kernels {

// Bytes of `workspace`, which backward needs where bias_grad is wanted.
std::int64_t geglu_workspace(std::int64_t rows, std::int64_t channels);

struct Geglu {
  std::int64_t rows;
  int channels;     // C
  Element element;  // of x and y
  const void* x;    // (rows, 2 C)
  Values bias;      // (2 C) or null
  void* y;          // (rows, C)
};
void run_cpu(const Geglu& arguments);
void run_cuda(const Geglu& arguments, void* stream);

struct GegluBackward {
  std::int64_t rows;
  int channels;
  Element element;
  const void *x, *y_grad;  // (rows, 2 C), (rows, C)
  Values bias;
  void* x_grad;      // (rows, 2 C)
  Target bias_grad;  // (2 C); data null: not wanted
  void* workspace;
};
void run_cpu(const GegluBackward& arguments);
void run_cuda(const GegluBackward& arguments, void* stream);

}  // namespace millrace::kernels
