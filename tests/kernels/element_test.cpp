#include "element.h"

#include "testing.h"

namespace millrace::kernels {
namespace {

// Of all 2^32 float32 numbers each 4099th, and those around the borders of the types.
std::vector<float> many_numbers() {
  std::vector<float> numbers;
  for (std::uint64_t bits = 0; bits < 0x100000000; bits += 4099)
    numbers.push_back(float_of(static_cast<std::uint32_t>(bits)));
  for (const float border : {65504.f, 65520.f, 0x1p-14f, 0x1p-24f, 0x1p-25f, 0x1.8p-24f, 1.f, 3.3895314e38f})
    for (int step = -3; step <= 3; ++step) {
      numbers.push_back(float_of(bits_of(border) + step));
      numbers.push_back(-numbers.back());
    }
  return numbers;
}

bool same(float a, float b) {
  return bits_of(a) == bits_of(b) || (a != a && b != b);
}

TEST(Element, RoundsAsLibTorch) {
  for (const float number : many_numbers()) {
    ASSERT_TRUE(same(to_float(Bf16{bf16_bits(number)}), static_cast<float>(c10::BFloat16(number)))) << number;
    ASSERT_TRUE(same(float_of_f16(f16_bits(number)), static_cast<float>(c10::Half(number)))) << number;
  }
}

TEST(Element, EveryHalfIsReadAsLibTorchReadsIt) {
  for (int bits = 0; bits < 0x10000; ++bits)
    ASSERT_TRUE(same(float_of_f16(static_cast<std::uint16_t>(bits)),
                     static_cast<float>(c10::Half(static_cast<std::uint16_t>(bits), c10::Half::from_bits()))))
        << bits;
}

}  // namespace
}  // namespace millrace::kernels
