#pragma once
#include <cstdint>

#include "element.h"

// y = layernorm(s) gamma + beta with s = x + residual, which is an output too, or s = x (Ba et al., "Layer
// normalization"). Statistics in float32, of s as it is stored.
namespace millrace::kernels {

// Bytes of `workspace`, which backward needs.
std::int64_t layer_norm_workspace(std::int64_t rows, std::int64_t channels);

struct LayerNorm {
  std::int64_t rows;
  int channels;
  Element element;  // of x, residual, sum, y
  float eps;
  const void *x, *residual;  // (rows, C); residual or null
  Values gamma, beta;        // (C)
  void *sum, *y;             // (rows, C); sum null without residual
  float *mean, *rstd;        // (rows), of s, for backward
};
void run_cpu(const LayerNorm& arguments);
void run_cuda(const LayerNorm& arguments, void* stream);

struct LayerNormBackward {
  std::int64_t rows;
  int channels;
  Element element;
  const void *s, *y_grad, *s_grad;  // (rows, C); s_grad, what comes to s by other ways, or null
  Values gamma;
  const float *mean, *rstd;
  void* x_grad;                  // (rows, C), with s_grad; also the residual's
  Target gamma_grad, beta_grad;  // data null: not wanted
  void* workspace;
};
void run_cpu(const LayerNormBackward& arguments);
void run_cuda(const LayerNormBackward& arguments, void* stream);

}  // namespace millrace::kernels
