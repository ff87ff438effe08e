#pragma once
#include <cstdint>

#include "millrace/kernels/element.h"

// y = silu(group_norm(x + time) gamma + beta) of channels-last images in float32 arithmetic (Wu and He, "Group
// normalization"); time, of (B, C), is added to all pixels, time and SiLU are optional. Statistics come from sums of
// deviations from a value of the data itself, so that a mean of a hundred standard deviations costs no digits. No
// atomics: the same input gives the same bits.
namespace millrace::kernels {

struct GroupNormShape {
  std::int64_t batch, pixels;  // batch at most 65535
  int channels, groups;        // groups divides channels
};

// Bytes of `workspace`, forward or backward.
std::int64_t group_norm_silu_workspace(const GroupNormShape& shape);

struct GroupNormSilu {
  GroupNormShape shape;
  Element element;  // of x and y
  bool with_silu;
  float eps;
  const void* x;             // (B, pixels, C)
  Values time, gamma, beta;  // (B, C) or null; (C); (C)
  void* y;                   // as x
  float *mean, *rstd;        // (B, groups), of x + time, for backward
  void* workspace;
};
void group_norm_silu_cpu(const GroupNormSilu& arguments);
void group_norm_silu_cuda(const GroupNormSilu& arguments, void* stream);

struct GroupNormSiluBackward {
  GroupNormShape shape;
  Element element;
  bool with_silu;
  const void *x, *y_grad;  // (B, pixels, C)
  Values time, gamma, beta;
  const float *mean, *rstd;
  void* x_grad;                             // (B, pixels, C)
  Target time_grad, gamma_grad, beta_grad;  // data null: not wanted
  void* workspace;
};
void group_norm_silu_backward_cpu(const GroupNormSiluBackward& arguments);
void group_norm_silu_backward_cuda(const GroupNormSiluBackward& arguments, void* stream);

}  // namespace millrace::kernels
