#pragma once
#include <cstdint>

#include "element.h"

// y = silu(group_norm(x + time + x_bias) gamma + beta) of channels-last images in float32 arithmetic (Wu and He, "Group
// normalization"); time, of (B, C), and x_bias, of (C), are added to all pixels; they and SiLU are optional. With
// x_bias a convolution needs no pass over its output for its bias, nor one for its gradient. Statistics come from sums
// of deviations from a value of the data itself, so that a mean of a hundred standard deviations costs no digits. No
// atomics: the same input gives the same bits.
namespace millrace::kernels {

struct GroupNormShape {
  std::int64_t batch, pixels;  // batch at most 65535
  int channels, groups;        // groups divides channels
};

// Bytes of `workspace`, forward or backward.
std::int64_t group_norm_silu_workspace(const GroupNormShape& shape);

// What is added to x.
struct Addend {
  Values time, x_bias;  // (B, C), (C); null: none

  // Of an element of (B, C).
  MILLRACE_HOST_DEVICE float of(std::int64_t at, int channel) const {
    return time.at_or(at, 0) + x_bias.at_or(channel, 0);
  }
};

struct GroupNormSilu {
  GroupNormShape shape;
  Element element;  // of x and y
  bool with_silu;
  float eps;
  const void* x;  // (B, pixels, C)
  Addend addend;
  Values gamma, beta;  // (C)
  void* y;             // as x
  float *mean, *rstd;  // (B, groups), of what is normalized, for backward
  void* workspace;
};
void run_cpu(const GroupNormSilu& arguments);
void run_cuda(const GroupNormSilu& arguments, void* stream);

struct GroupNormSiluBackward {
  GroupNormShape shape;
  Element element;
  bool with_silu;
  const void *x, *y_grad;      // (B, pixels, C)
  const void* x_grad_of_rest;  // (B, pixels, C), of what else x was used for; null: nothing
  Addend addend;
  Values gamma, beta;
  const float *mean, *rstd;
  void* x_grad;                                          // (B, pixels, C), the sum of both
  Target time_grad, x_bias_grad, gamma_grad, beta_grad;  // data null: not wanted
  void* workspace;
};
void run_cpu(const GroupNormSiluBackward& arguments);
void run_cuda(const GroupNormSiluBackward& arguments, void* stream);

}  // namespace millrace::kernels
