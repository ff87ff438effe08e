#include "resize_passes.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>

// NOTE [Exact products from 16-bit multiplies]: a pixel (8 bits) times a weight (22 bits and sign) does not fit the
// 16-bit multiply-add, the fastest one there is. Each weight is split as high * 2^15 + low; sums of both halves are
// taken apart and joined at the end. All arithmetic is modulo 2^32 and the true sum fits 32 bits, so nothing is lost.
#define MILLRACE_AVX2 __attribute__((target("avx2"), always_inline)) inline

namespace millrace {

namespace {

// Sums of products, as 32-bit lanes; they start with the half that rounds.
struct Sums {
  __m256i low, high;
};

MILLRACE_AVX2 Sums first_products(__m256i pixel_pairs, __m256i low, __m256i high) {
  const __m256i half = _mm256_set1_epi32(1 << (weight_bits - 1));
  return {_mm256_add_epi32(half, _mm256_madd_epi16(pixel_pairs, low)), _mm256_madd_epi16(pixel_pairs, high)};
}

MILLRACE_AVX2 void add_products(Sums& sums, __m256i pixel_pairs, __m256i low, __m256i high) {
  sums.low = _mm256_add_epi32(sums.low, _mm256_madd_epi16(pixel_pairs, low));
  sums.high = _mm256_add_epi32(sums.high, _mm256_madd_epi16(pixel_pairs, high));
}

// The sum / 2^22, not yet cut to 0..255.
MILLRACE_AVX2 __m256i rounded(const Sums& sums) {
  return _mm256_srai_epi32(_mm256_add_epi32(sums.low, _mm256_slli_epi32(sums.high, split_bits)), weight_bits);
}

// Two pixels of row a in the lower lane, of row b in the upper -> 16-bit (R0, R1, G0, G1, B0, B1, 0, 0).
MILLRACE_AVX2 __m256i load_pairs(const std::uint8_t* a, const std::uint8_t* b) {
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
  const __m128i lower = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(a));
  const __m128i upper = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(b));
  return _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(lower), upper, 1), order);
}

// The first four bytes of each lane: three channels and a byte that the next pixel overwrites.
MILLRACE_AVX2 void store_two(__m256i bytes, std::uint8_t* a, std::uint8_t* b) {
  const int lower = _mm_cvtsi128_si32(_mm256_castsi256_si128(bytes));
  const int upper = _mm_cvtsi128_si32(_mm256_extracti128_si256(bytes, 1));
  std::memcpy(a, &lower, 4);
  std::memcpy(b, &upper, 4);
}

// For any scale: four rows at once, which share the weights. A lane holds (R, G, B, unused) of one row.
__attribute__((target("avx2"))) void horizontal_four(const std::uint8_t* const* rows, const AxisWeights& axis,
                                                     std::uint8_t* const* out) {
  const int pairs = axis.taps / 2;
  const std::uint32_t* low = axis.low.data();
  const std::uint32_t* high = axis.high.data();
  for (int x = 0; x < axis.size; ++x, low += pairs, high += pairs) {
    const std::size_t at = static_cast<std::size_t>(axis.first[x]) * 3;
    const auto pixels = [&](int row, int pair) __attribute__((target("avx2"), always_inline)) {
      return load_pairs(rows[row] + at + 6 * pair, rows[row + 1] + at + 6 * pair);
    };
    __m256i low_pair = _mm256_set1_epi32(low[0]), high_pair = _mm256_set1_epi32(high[0]);
    Sums upper = first_products(pixels(0, 0), low_pair, high_pair);
    Sums lower = first_products(pixels(2, 0), low_pair, high_pair);
    for (int pair = 1; pair < pairs; ++pair) {
      low_pair = _mm256_set1_epi32(low[pair]);
      high_pair = _mm256_set1_epi32(high[pair]);
      add_products(upper, pixels(0, pair), low_pair, high_pair);
      add_products(lower, pixels(2, pair), low_pair, high_pair);
    }
    const __m256i words = _mm256_packs_epi32(rounded(upper), rounded(lower));
    const __m256i bytes = _mm256_packus_epi16(words, words);  // per lane: 4 bytes of `upper`, 4 of `lower`, again
    store_two(bytes, out[0] + 3 * x, out[1] + 3 * x);
    store_two(_mm256_srli_si256(bytes, 4), out[2] + 3 * x, out[3] + 3 * x);
  }
}

// NOTE [Dense lanes]: where neighbouring outputs start at most three inputs apart (scales up to about three: nearly all
// images), the two pixels that feed each of four consecutive output bytes lie within 16 bytes. So every 32-bit sum
// belongs to one output byte, none is wasted, and 32 bytes are made and stored together. A block = four registers; in
// register g the lower lane makes bytes 4g..4g+3, the upper lane bytes 16+4g..16+4g+3: packing puts them in order.
constexpr int block_bytes = 32, block_registers = 4, lane_bytes = 4;

void plan_horizontal(AxisWeights& axis) {
  DenseLanes& plan = axis.dense;
  const int bytes = axis.size * 3, pairs = axis.taps / 2;
  plan.blocks = (bytes + block_bytes - 1) / block_bytes;
  const std::size_t lanes = static_cast<std::size_t>(plan.blocks) * block_registers * 2;
  plan.offsets.resize(lanes);
  plan.order.assign(lanes * 16, 0xFF);
  plan.low.resize(lanes * lane_bytes * pairs);
  plan.high.resize(plan.low.size());
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    const std::size_t reg = lane / 2, upper = lane % 2;
    const int start = static_cast<int>(reg / block_registers) * block_bytes +
                      static_cast<int>(reg % block_registers) * lane_bytes + static_cast<int>(upper) * block_bytes / 2;
    int from[lane_bytes];  // bytes behind the last output repeat it
    for (int i = 0; i < lane_bytes; ++i) from[i] = std::min(start + i, bytes - 1);
    const auto [left, right] = std::minmax(axis.first[from[0] / 3], axis.first[from[lane_bytes - 1] / 3]);
    if (right - left > 3) {
      plan.blocks = 0;
      return;
    }
    plan.offsets[lane] = left * 3;
    for (int i = 0; i < lane_bytes; ++i) {
      const int x = from[i] / 3, at = (axis.first[x] - left) * 3 + from[i] % 3;
      plan.order[lane * 16 + 4 * i] = static_cast<std::uint8_t>(at);
      plan.order[lane * 16 + 4 * i + 2] = static_cast<std::uint8_t>(at + 3);
      for (int pair = 0; pair < pairs; ++pair) {
        const std::size_t to = (reg * pairs + pair) * 8 + upper * lane_bytes + i;
        plan.low[to] = axis.low[static_cast<std::size_t>(x) * pairs + pair];
        plan.high[to] = axis.high[static_cast<std::size_t>(x) * pairs + pair];
      }
    }
  }
}

MILLRACE_AVX2 __m256i load(const void* bytes) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(bytes));
}

MILLRACE_AVX2 __m256i load_lanes(const std::uint8_t* lower, const std::uint8_t* upper) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(lower))),
                                 _mm_loadu_si128(reinterpret_cast<const __m128i*>(upper)), 1);
}

// `Pairs` = pairs of taps where it is known, so that their loop unrolls, else 0.
template <int Pairs>
__attribute__((target("avx2"))) void horizontal_dense(const std::uint8_t* row, const DenseLanes& plan, int any_pairs,
                                                      std::uint8_t* out) {
  const int pairs = Pairs ? Pairs : any_pairs;
  const int* offsets = plan.offsets.data();
  const std::uint8_t* order = plan.order.data();
  const std::uint32_t* low = plan.low.data();
  const std::uint32_t* high = plan.high.data();
  for (int block = 0; block < plan.blocks; ++block) {
    __m256i sums[block_registers];
    for (__m256i& sum : sums) {
      const std::uint8_t* lower = row + offsets[0];
      const std::uint8_t* upper = row + offsets[1];
      const __m256i shuffle = load(order);
      Sums products = first_products(_mm256_shuffle_epi8(load_lanes(lower, upper), shuffle), load(low), load(high));
      for (int pair = 1; pair < pairs; ++pair) {
        const __m256i pixels = _mm256_shuffle_epi8(load_lanes(lower + 6 * pair, upper + 6 * pair), shuffle);
        add_products(products, pixels, load(low + 8 * pair), load(high + 8 * pair));
      }
      sum = rounded(products);
      offsets += 2;
      order += 32;
      low += 8 * pairs;
      high += 8 * pairs;
    }
    const __m256i words_a = _mm256_packs_epi32(sums[0], sums[1]), words_b = _mm256_packs_epi32(sums[2], sums[3]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + block * block_bytes), _mm256_packus_epi16(words_a, words_b));
  }
}

using HorizontalDense = void (*)(const std::uint8_t*, const DenseLanes&, int, std::uint8_t*);

HorizontalDense horizontal_dense_for(int taps) {
  switch (taps) {
    case 2:
      return horizontal_dense<1>;
    case 4:
      return horizontal_dense<2>;
    default:
      return horizontal_dense<0>;
  }
}

void horizontal(const std::uint8_t* const* rows, int row_count, const AxisWeights& axis, std::uint8_t* out,
                std::size_t out_stride) {
  if (axis.dense.blocks > 0) {
    const HorizontalDense dense = horizontal_dense_for(axis.taps);
    for (int y = 0; y < row_count; ++y) dense(rows[y], axis.dense, axis.taps / 2, out + y * out_stride);
    return;
  }
  for (int y = 0; y < row_count; y += 4) {
    const std::uint8_t* in[4];
    std::uint8_t* to[4];
    for (int i = 0; i < 4; ++i) {  // the last group repeats its last row
      const int row = std::min(y + i, row_count - 1);
      in[i] = rows[row];
      to[i] = out + row * out_stride;
    }
    horizontal_four(in, axis, to);
  }
}

// 32 bytes of two rows as 16-bit pairs (a, b), in four groups of eight bytes.
struct RowPairs {
  __m256i group[4];
};

MILLRACE_AVX2 RowPairs interleave(__m256i a, __m256i b) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i even = _mm256_unpacklo_epi8(a, b), odd = _mm256_unpackhi_epi8(a, b);
  return {{_mm256_unpacklo_epi8(even, zero), _mm256_unpackhi_epi8(even, zero), _mm256_unpacklo_epi8(odd, zero),
           _mm256_unpackhi_epi8(odd, zero)}};
}

__attribute__((target("avx2"))) void vertical(const std::uint8_t* in, std::size_t in_stride, const AxisWeights& axis,
                                              int y, std::size_t row_bytes, std::uint8_t* out) {
  constexpr std::size_t block = 32;
  if (row_bytes < block) return portable_passes().vertical(in, in_stride, axis, y, row_bytes, out);
  const std::uint8_t* top = in + axis.first[y] * in_stride;
  const std::uint32_t* low = &axis.low[static_cast<std::size_t>(y) * axis.taps / 2];
  const std::uint32_t* high = &axis.high[static_cast<std::size_t>(y) * axis.taps / 2];
  for (std::size_t start = 0; start < row_bytes; start += block) {
    const std::size_t i = std::min(start, row_bytes - block);  // the last block overlaps the one before
    const auto rows = [&](int k) __attribute__((target("avx2"), always_inline)) {
      const std::uint8_t* a = top + k * in_stride + i;
      const std::uint8_t* b = k + 1 < axis.inputs ? a + in_stride : a;  // behind the last row: any, the weight is zero
      return interleave(load(a), load(b));
    };
    Sums sums[4];
    __m256i low_pair = _mm256_set1_epi32(low[0]), high_pair = _mm256_set1_epi32(high[0]);
    RowPairs pairs = rows(0);
    for (int g = 0; g < 4; ++g) sums[g] = first_products(pairs.group[g], low_pair, high_pair);
    for (int k = 2; k < axis.taps; k += 2) {
      low_pair = _mm256_set1_epi32(low[k / 2]);
      high_pair = _mm256_set1_epi32(high[k / 2]);
      pairs = rows(k);
      for (int g = 0; g < 4; ++g) add_products(sums[g], pairs.group[g], low_pair, high_pair);
    }
    const __m256i even = _mm256_packs_epi32(rounded(sums[0]), rounded(sums[1]));
    const __m256i odd = _mm256_packs_epi32(rounded(sums[2]), rounded(sums[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_packus_epi16(even, odd));
  }
}

}  // namespace

const ResizePasses& best_passes() {
  static constexpr ResizePasses avx2{plan_horizontal, horizontal, vertical};
  static const bool available = __builtin_cpu_supports("avx2");
  return available ? avx2 : portable_passes();
}

}  // namespace millrace
#else

namespace millrace {

const ResizePasses& best_passes() {
  return portable_passes();
}

}  // namespace millrace
#endif
