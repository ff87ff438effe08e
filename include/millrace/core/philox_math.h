#pragma once
#include <cstdint>
#include <cstring>

#include "millrace/core/host_device.h"

// The arithmetic of philox.h without library calls, shared by the host loops and the CUDA kernels. Only +, -, *, / and
// sqrt, all correctly rounded: compiled without fused multiply-add (-ffp-contract=off, nvcc --fmad=false) both give the
// same bits.
namespace millrace::philox_math {

inline constexpr std::uint32_t multiplier_0 = 0xD2511F53, multiplier_1 = 0xCD9E8D57;
inline constexpr std::uint32_t weyl_0 = 0x9E3779B9, weyl_1 = 0xBB67AE85;

// Ten rounds over the counter words c0..c3, in place.
MILLRACE_HOST_DEVICE inline void rounds(std::uint32_t& c0, std::uint32_t& c1, std::uint32_t& c2, std::uint32_t& c3,
                                        std::uint32_t k0, std::uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{multiplier_0} * c0;
    const std::uint64_t p1 = std::uint64_t{multiplier_1} * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += weyl_0;
    k1 += weyl_1;
  }
}

// Second word of the counter: purpose (8 bits), epoch (24 bits).
MILLRACE_HOST_DEVICE inline std::uint32_t purpose_and_epoch(std::uint32_t purpose, std::uint32_t epoch) {
  return purpose << 24 | (epoch & 0xFFFFFF);
}

// 0 <= x < 1 from the upper 24 bits.
MILLRACE_HOST_DEVICE inline float unit_interval(std::uint32_t word) {
  return static_cast<float>(static_cast<std::int32_t>(word >> 8)) * 0x1p-24f;
}

// ln(x) for 2^-24 <= x <= 1: x = m 2^e with sqrt(1/2) <= m < sqrt(2), then the series of 2 artanh((m - 1) / (m + 1)).
MILLRACE_HOST_DEVICE inline float log_unit(float x) {
  constexpr std::int32_t sqrt_half = 0x3F3504F3;  // the bits of sqrt(1/2)
  std::int32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const std::int32_t exponent = (bits - sqrt_half) >> 23;
  bits -= exponent << 23;
  float m;
  memcpy(&m, &bits, sizeof m);
  const float s = (m - 1) / (m + 1);
  const float t = s * s;
  const float series = t * (1 / 3.f + t * (1 / 5.f + t * (1 / 7.f + t * (1 / 9.f))));
  return static_cast<float>(exponent) * 0.693147181f + (2 * s + 2 * s * series);
}

// cos and sin of a full turn times word / 2^32: two bits choose the quadrant, the rest is an angle in [-pi/4, pi/4).
MILLRACE_HOST_DEVICE inline void cos_sin_turn(std::uint32_t word, float& cosine, float& sine) {
  const std::uint32_t quadrant = (word + 0x20000000u) >> 30;
  const std::int32_t rest = static_cast<std::int32_t>(word - (quadrant << 30));
  const float a = static_cast<float>(rest) * (3.14159265f * 0x1p-31f);
  const float t = a * a;
  const float s = a + a * t * (-1 / 6.f + t * (1 / 120.f + t * (-1 / 5040.f + t * (1 / 362880.f))));
  const float c = 1 + t * (-0.5f + t * (1 / 24.f + t * (-1 / 720.f + t * (1 / 40320.f + t * (-1 / 3628800.f)))));
  const bool swapped = quadrant & 1;
  cosine = (swapped ? s : c) * ((quadrant + 1) & 2 ? -1.f : 1.f);
  sine = (swapped ? c : s) * (quadrant & 2 ? -1.f : 1.f);
}

// -2 ln(u) with u in (0, 1], so that the radius below is finite: at most 5.77.
MILLRACE_HOST_DEVICE inline float squared_radius(std::uint32_t word) {
  return -2 * log_unit(static_cast<float>(static_cast<std::int32_t>(word >> 8) + 1) * 0x1p-24f);
}

}  // namespace millrace::philox_math
