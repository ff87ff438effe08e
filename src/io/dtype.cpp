#include "millrace/io/dtype.h"

#include <array>

#include "millrace/core/error.h"

namespace millrace {

namespace {

struct Row {
  const char* name;
  int bits;
};

// One row per DType, in its order.
constexpr std::array<Row, 22> table = {{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};
static_assert(table.size() == static_cast<std::size_t>(DType::u64) + 1);

const Row& row_of(DType dtype) {
  return table[static_cast<std::size_t>(dtype)];
}

}  // namespace

const char* to_string(DType dtype) {
  return row_of(dtype).name;
}

std::optional<DType> try_parse_dtype(std::string_view name) {
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (name == table[i].name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

int bits_of(DType dtype) {
  return row_of(dtype).bits;
}

std::size_t size_of(DType dtype) {
  ensure(bits_of(dtype) % 8 == 0, "an element smaller than a byte has no size in bytes");
  return static_cast<std::size_t>(bits_of(dtype)) / 8;
}

std::optional<std::uint64_t> try_byte_count(DType dtype, std::span<const std::int64_t> shape) {
  // Multiplied in order, as the reference does: a zero dimension does not excuse an overflow before it.
  std::uint64_t bits = 1;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0 || __builtin_mul_overflow(bits, static_cast<std::uint64_t>(dimension), &bits))
      return std::nullopt;
  }
  if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(bits_of(dtype)), &bits)) return std::nullopt;
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

}  // namespace millrace
