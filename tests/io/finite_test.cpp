#include <cmath>
#include <limits>
#include <vector>

#include "millrace/io/finite.h"
#include "support.h"

namespace millrace::test {
namespace {

template <class T>
std::span<const std::byte> bytes_from(const std::vector<T>& values, std::size_t from = 0) {
  return std::as_bytes(std::span(values)).subspan(from);
}

// Every NaN and infinity of a type is found at its place, and the largest and smallest finite numbers are not.
template <class T>
void expect_finds(DType dtype, const std::vector<T>& finite, const std::vector<std::pair<T, double>>& not_finite) {
  for (const std::size_t size : {1u, 7u, 4096u, 10'000u}) {
    std::vector<T> values(size);
    for (std::size_t i = 0; i < size; ++i) values[i] = finite[i % finite.size()];
    EXPECT_FALSE(find_non_finite(dtype, bytes_from(values))) << to_string(dtype) << " " << size;
    for (const auto& [bits, value] : not_finite) {
      for (const std::size_t place : {std::size_t{0}, size / 2, size - 1}) {
        auto broken = values;
        broken[place] = bits;
        const auto found = find_non_finite(dtype, bytes_from(broken));
        ASSERT_TRUE(found) << to_string(dtype) << " " << value << " at " << place << " of " << size;
        EXPECT_EQ(found->element, place);
        EXPECT_TRUE(std::isnan(value) ? std::isnan(found->value) : found->value == value) << found->value;
      }
    }
  }
}

TEST(NonFinite, IsFoundInEveryFloatingType) {
  using Single = std::numeric_limits<float>;
  using Double = std::numeric_limits<double>;
  constexpr double infinity = Double::infinity(), nan = Double::quiet_NaN();
  expect_finds<float>(DType::f32, {0, -0.0f, 1, Single::max(), Single::lowest(), Single::denorm_min()},
                      {{Single::infinity(), infinity}, {-Single::infinity(), -infinity}, {Single::quiet_NaN(), nan}});
  expect_finds<double>(DType::f64, {0, -1, Double::max(), Double::lowest(), Double::denorm_min()},
                       {{infinity, infinity}, {-infinity, -infinity}, {nan, nan}});
  // Bits: zero, 1, largest, most negative, smallest; infinity, its negative, a quiet NaN, a NaN with the sign set.
  expect_finds<std::uint16_t>(DType::f16, {0x0000, 0x3C00, 0x7BFF, 0xFBFF, 0x0001},
                              {{0x7C00, infinity}, {0xFC00, -infinity}, {0x7E00, nan}, {0xFC01, nan}});
  expect_finds<std::uint16_t>(DType::bf16, {0x0000, 0x3F80, 0x7F7F, 0xFF7F, 0x0001},
                              {{0x7F80, infinity}, {0xFF80, -infinity}, {0x7FC0, nan}, {0xFF81, nan}});
}

TEST(NonFinite, IsNotLookedForInIntegers) {
  const std::vector<std::int64_t> ones(10, -1);  // all bits set: a NaN if they were floats
  for (const DType dtype : {DType::i64, DType::u64, DType::i32, DType::i16, DType::u8, DType::boolean})
    EXPECT_FALSE(find_non_finite(dtype, bytes_from(ones))) << to_string(dtype);
}

TEST(NonFinite, MayStartAtAnOddByteOrNotExist) {
  std::vector<std::uint8_t> bytes(9, 0);
  bytes[7] = 0xC0, bytes[8] = 0x7F;  // a NaN in the second float from byte 1 on
  EXPECT_EQ(find_non_finite(DType::f32, bytes_from(bytes, 1)).value().element, 1u);
  EXPECT_FALSE(find_non_finite(DType::f32, {}));
}

TEST(NonFinite, IsRefusedWithFileTensorAndElement) {
  const std::vector<float> values = {1, 2, INFINITY};
  const Error error =
      error_of([&] { refuse_non_finite("a/b.safetensors", "conv.bias", DType::f32, bytes_from(values)); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_STREQ(error.what(), "a/b.safetensors: 'conv.bias' holds inf (element 2)");
  refuse_non_finite("a/b.safetensors", "conv.bias", DType::f32, bytes_from(std::vector<float>{1, 2}));
}

}  // namespace
}  // namespace millrace::test
