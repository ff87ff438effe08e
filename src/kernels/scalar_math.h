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

// gelu(x) = x normal_distribution(x), the exact one.
MILLRACE_HOST_DEVICE inline float normal_distribution(float x) {
  constexpr float sqrt_half = 0.70710678f;
  return 0.5f * (1 + erff(x * sqrt_half));
}
MILLRACE_HOST_DEVICE inline float normal_density(float x) {
  constexpr float inverse_sqrt_two_pi = 0.39894228f;
  return inverse_sqrt_two_pi * exponential(-0.5f * x * x);
}

}  // namespace millrace::kernels
