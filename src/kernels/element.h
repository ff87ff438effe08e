#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "millrace/core/host_device.h"
#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

// Types of tensors in memory; all arithmetic is float32 (sums of squares: float64).
namespace millrace::kernels {

enum class Element : int { f32, bf16, f16 };

struct Bf16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

inline std::int64_t size_of(Element element) {
  return element == Element::f32 ? 4 : 2;
}

MILLRACE_HOST_DEVICE inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
MILLRACE_HOST_DEVICE inline float float_of(std::uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Conversions by hand for the host: float32 -> 16 bits rounds to the nearest, ties to even.
inline std::uint16_t bf16_bits(float value) {
  const auto bits = bits_of(value);
  if (value != value) return static_cast<std::uint16_t>(bits >> 16 | 0x40);  // NaN stays NaN
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
inline std::uint16_t f16_bits(float value) {
  const auto sign = static_cast<std::uint16_t>(bits_of(value) >> 16 & 0x8000);
  const float magnitude = std::fabs(value);
  if (value != value) return static_cast<std::uint16_t>(sign | 0x7E00);
  if (magnitude >= 65520.f) return static_cast<std::uint16_t>(sign | 0x7C00);
  // Below 2^-14 numbers are multiples of 2^-24; the float32 addition rounds to one.
  if (magnitude < 0x1p-14f) return static_cast<std::uint16_t>(sign | (bits_of(magnitude + 0.5f) - bits_of(0.5f)));
  const auto bits = bits_of(magnitude) - (112u << 23);  // another bias of the exponent
  return static_cast<std::uint16_t>(sign | (bits + 0xFFF + (bits >> 13 & 1)) >> 13);
}
inline float float_of_f16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 0x1F, fraction = bits & 0x3FF;
  if (exponent == 0x1F) return float_of(sign | 0x7F800000 | fraction << 13);
  if (exponent == 0) return float_of(sign | bits_of(static_cast<float>(fraction) * 0x1p-24f));
  return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

MILLRACE_HOST_DEVICE inline float to_float(float value) {
  return value;
}
MILLRACE_HOST_DEVICE inline float to_float(Bf16 value) {
  return float_of(static_cast<std::uint32_t>(value.bits) << 16);
}
MILLRACE_HOST_DEVICE inline float to_float(F16 value) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(value.bits));
#else
  return float_of_f16(value.bits);
#endif
}

MILLRACE_HOST_DEVICE inline void assign(float& target, float value) {
  target = value;
}
MILLRACE_HOST_DEVICE inline void assign(Bf16& target, float value) {
#if defined(__CUDA_ARCH__)
  target.bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
  target.bits = bf16_bits(value);
#endif
}
MILLRACE_HOST_DEVICE inline void assign(F16& target, float value) {
#if defined(__CUDA_ARCH__)
  target.bits = __half_as_ushort(__float2half_rn(value));
#else
  target.bits = f16_bits(value);
#endif
}

// Neighbouring elements that are loaded and stored together: in one access of 16 bytes, or in several.
template <class T, int width>
struct alignas(sizeof(T) * width < 16 ? sizeof(T) * width : 16) Pack {
  T values[width];
};

template <int width, class T>
MILLRACE_HOST_DEVICE inline Pack<T, width> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, width>*>(from);
}
template <int width, class T>
MILLRACE_HOST_DEVICE inline void unpack(const Pack<T, width>& pack, float (&values)[width]) {
  for (int i = 0; i < width; ++i) values[i] = to_float(pack.values[i]);
}
template <int width, class T>
MILLRACE_HOST_DEVICE inline void load(const T* from, float (&values)[width]) {
  unpack(load_pack<width>(from), values);
}
template <int width, class T>
MILLRACE_HOST_DEVICE inline void store(T* to, const float (&values)[width]) {
  Pack<T, width> pack;
  for (int i = 0; i < width; ++i) assign(pack.values[i], values[i]);
  *reinterpret_cast<Pack<T, width>*>(to) = pack;
}

// An input whose type is known when the program runs: a parameter. Null: there is none.
struct Values {
  const void* data = nullptr;
  Element element = Element::f32;

  template <int width>
  MILLRACE_HOST_DEVICE void read(std::int64_t at, float (&values)[width]) const {
    if (element == Element::f32) {
      load(static_cast<const float*>(data) + at, values);
    } else if (element == Element::bf16) {
      load(static_cast<const Bf16*>(data) + at, values);
    } else {
      load(static_cast<const F16*>(data) + at, values);
    }
  }
  MILLRACE_HOST_DEVICE float operator[](std::int64_t at) const {
    float value[1];
    read(at, value);
    return value[0];
  }
  MILLRACE_HOST_DEVICE float at_or(std::int64_t at, float otherwise) const {
    return data != nullptr ? (*this)[at] : otherwise;
  }
};

// An output, likewise.
struct Target {
  void* data = nullptr;
  Element element = Element::f32;

  template <int width>
  MILLRACE_HOST_DEVICE void write(std::int64_t at, const float (&values)[width]) const {
    if (element == Element::f32) {
      store(static_cast<float*>(data) + at, values);
    } else if (element == Element::bf16) {
      store(static_cast<Bf16*>(data) + at, values);
    } else {
      store(static_cast<F16*>(data) + at, values);
    }
  }
  MILLRACE_HOST_DEVICE void write(std::int64_t at, float value) const {
    const float values[1] = {value};
    write(at, values);
  }
};

// Whether an access of 16 bytes may start here.
inline bool is_aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

// function(T{}) with T the type of `element`.
template <class Function>
void with_type(Element element, const Function& function) {
  if (element == Element::f32) {
    function(float{});
  } else if (element == Element::bf16) {
    function(Bf16{});
  } else {
    function(F16{});
  }
}

}  // namespace millrace::kernels
