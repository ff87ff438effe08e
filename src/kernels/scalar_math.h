#pragma once
#include <cmath>

#include "millrace/core/host_device.h"

namespace millrace::kernels {

// On the GPU its fast exponential and division: a few units of float32's last place.
MILLRACE_HOST_DEVICE inline float exponential(float x) {
#if defined(__CUDA_ARCH__)
  return __expf(x);
#else
  return std::exp(x);
#endif
}
MILLRACE_HOST_DEVICE inline float sigmoid(float x) {
#if defined(__CUDA_ARCH__)
  return __fdividef(1.f, 1.f + __expf(-x));
#else
  return 1.f / (1.f + std::exp(-x));
#endif
}
MILLRACE_HOST_DEVICE inline float silu(float x) {
  return x * sigmoid(x);
}
MILLRACE_HOST_DEVICE inline float silu_derivative(float x) {
  const float s = sigmoid(x);
  return s * (1 + x * (1 - s));
}

MILLRACE_HOST_DEVICE inline float reciprocal(float x) {
#if defined(__CUDA_ARCH__)
  return __fdividef(1.f, x);
#else
  return 1.f / x;
#endif
}

// Of the normal distribution at x; gelu(x) = x distribution.
struct Normal {
  float distribution, density;
};
// Both from one exponential. The tail is Abramowitz and Stegun's 7.1.26, within 1e-7: no gelu of tanh.
MILLRACE_HOST_DEVICE inline Normal normal_at(float x) {
  constexpr float sqrt_half = 0.70710678f, inverse_sqrt_two_pi = 0.39894228f;
  const float power = exponential(-0.5f * x * x);
  const float t = reciprocal(1 + 0.3275911f * sqrt_half * fabsf(x));
  const float series =
      t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  const float tail = 0.5f * series * power;
  return {x < 0 ? tail : 1 - tail, inverse_sqrt_two_pi * power};
}

}  // namespace millrace::kernels
