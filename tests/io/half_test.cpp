#include <gtest/gtest.h>

#include <cmath>

#include "millrace/io/half.h"

namespace millrace {
namespace {

// Bits from IEEE 754-2008, binary16.
TEST(Half, KnownBits) {
  EXPECT_EQ(to_half(1.0f), 0x3C00);
  EXPECT_EQ(to_half(-30.0f), 0xCF80);
  EXPECT_EQ(to_half(65504.0f), 0x7BFF) << "the largest";
  EXPECT_EQ(to_half(65520.0f), 0x7C00) << "too large";
  EXPECT_EQ(to_half(std::ldexp(1.0f, -24)), 0x0001) << "the smallest";
  EXPECT_EQ(to_half(2049.0f), 0x6800) << "ties to even";
  EXPECT_EQ(to_half(2051.0f), 0x6802) << "ties to even";
  EXPECT_EQ(from_half(0x3555), 1365.0f / 4096);
}

TEST(Half, FiniteOnes) {
  EXPECT_TRUE(is_finite_half(0x7BFF));
  EXPECT_FALSE(is_finite_half(to_half(1e6f)));
  EXPECT_FALSE(is_finite_half(to_half(std::nanf(""))));
}

TEST(Half, ThereAndBack) {
  for (int bits = 0; bits < 0x7C00; ++bits) EXPECT_EQ(to_half(from_half(static_cast<std::uint16_t>(bits))), bits);
}

}  // namespace
}  // namespace millrace
