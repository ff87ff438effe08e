#pragma once
#include <cstdint>

// IEEE half precision, as bits.
namespace millrace {

// Rounded to the nearest, ties to even; what is too large becomes infinity.
std::uint16_t to_half(float value);
float from_half(std::uint16_t bits);
constexpr bool is_finite_half(std::uint16_t bits) {
  return (bits & 0x7C00) != 0x7C00;
}

}  // namespace millrace
