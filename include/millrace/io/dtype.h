#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace millrace {

// Element types of safetensors files, in the order by which the reference writer sorts tensors (last one first).
enum class DType : std::uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
};

const char* to_string(DType dtype);                           // as in a file: "F32", "BF16", "BOOL"
std::optional<DType> try_parse_dtype(std::string_view name);  // the reverse
int bits_of(DType dtype);                                     // of one element
std::size_t size_of(DType dtype);                             // bytes of one element; the 4- and 6-bit types have none

// Bytes of a dense tensor; nothing when the product overflows, a dimension is negative or the last byte is not full.
std::optional<std::uint64_t> try_byte_count(DType dtype, std::span<const std::int64_t> shape);

}  // namespace millrace
