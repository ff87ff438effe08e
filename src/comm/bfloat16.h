#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

namespace millrace {

// A bfloat16 is the upper half of a float.
inline float widen(std::uint16_t value) {
  return std::bit_cast<float>(std::uint32_t{value} << 16);
}

// To the nearest, ties to even, as LibTorch rounds.
inline std::uint16_t narrow(float value) {
  if (std::isnan(value)) return 0x7fc0;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace millrace
