// Registers full of floats. Without an include guard, as the texts of the kernels: per_processor.cpp includes them once
// for each kind of processor, in a namespace of its own that defines `simd_width` (floats in a register), after
// MILLRACE_TARGET (attribute of every function).
#define MILLRACE_INLINE MILLRACE_TARGET __attribute__((always_inline)) inline

typedef float Floats __attribute__((vector_size(simd_width * sizeof(float))));
typedef std::int32_t Ints __attribute__((vector_size(simd_width * sizeof(float))));

MILLRACE_INLINE Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

MILLRACE_INLINE void store(Floats x, float* to) {
  std::memcpy(to, &x, sizeof x);
}

// -|x|.
MILLRACE_INLINE Floats negative_magnitude(Floats x) {
  constexpr std::int32_t sign = std::numeric_limits<std::int32_t>::min();
  return (Floats)((Ints)x | sign);
}

// e^x for x <= 0, to the last bit or two; 0 from where it is 1.6e-28, next to nothing. So far above the smallest normal
// number that its products, too, are either normal or 0: an operation on others takes processors some 150 cycles. NaN
// stays NaN. 2^n e^r with whole n and |r| <= ln(2) / 2, e^r by its power series.
MILLRACE_INLINE Floats exp_of_negative(Floats x) {
  constexpr float log2_e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  constexpr float rounder = 3 << 22;  // a float this large has no bits behind the point: the sum's lowest are n
  const Ints is_nothing = x < -64.0f;
  x = is_nothing ? Floats{} - 64.0f : x;
  const Floats shifted = x * log2_e + rounder;
  const Floats n = shifted - rounder;
  const Floats r = x - n * ln2_high - n * ln2_low;
  Floats series = r * (1.0f / 720) + 1.0f / 120;
  series = series * r + 1.0f / 24;
  series = series * r + 1.0f / 6;
  series = series * r + 0.5f;
  series = series * r + 1.0f;
  series = series * r + 1.0f;
  const Ints power_bits = ((Ints)shifted << 23) + (127 << 23);
  return is_nothing ? Floats{} : series * (Floats)power_bits;
}

// 1 / (1 + e^-x).
MILLRACE_INLINE Floats sigmoid(Floats x) {
  const Floats small = exp_of_negative(negative_magnitude(x));
  return (x < 0.0f ? small : Floats{} + 1.0f) / (1.0f + small);
}
