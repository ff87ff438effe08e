#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

// The two passes of a separable resize, each with a portable and an AVX2 form that give the same bytes.
namespace millrace {

inline constexpr int weight_bits = 22;  // fixed point of the weights (Pillow: 32 - 8 bits of pixel - 2 of headroom)
inline constexpr int split_bits = 15;   // AVX2 multiplies 16-bit halves: weight = high * 2^15 + low
inline constexpr int row_padding = 32;  // bytes a pass may read or write behind a row

// The weights of an axis of RGB pixels in the order in which the AVX2 pass takes them (NOTE [Dense lanes]); no blocks
// where its outputs lie too far apart for it.
struct DenseLanes {
  int blocks = 0;
  std::vector<int> offsets;              // [blocks][4][2 lanes]: where a lane's 16 input bytes start
  std::vector<std::uint8_t> order;       // [blocks][4][32]: which of them feed its sums, as 16-bit pairs
  std::vector<std::uint32_t> low, high;  // [blocks][4][pairs][8 sums]
};

// For each output of one axis: where its input starts and the weights of the `taps` inputs from there. All outputs have
// the same even number of taps, shorter ones with zero weights; only when the axis has fewer inputs than taps does the
// last one lie behind its end, with weight zero.
struct AxisWeights {
  int size = 0;  // outputs
  int taps = 0;
  int inputs = 0;                        // taps that lie inside: taps or taps - 1
  std::vector<int> first;                // [size]
  std::vector<std::int32_t> weights;     // [size][taps]
  std::vector<std::uint32_t> low, high;  // [size][taps / 2]: pairs of 16-bit halves
  DenseLanes dense;                      // of a horizontal axis, as plan_horizontal leaves it
};

// Each pass rounds to 8 bits.
struct ResizePasses {
  // Before the first call of `horizontal` with this axis.
  void (*plan_horizontal)(AxisWeights& axis);
  // `row_count` rows of RGB -> rows of axis.size pixels. rows[i] can be read up to row_padding bytes behind its last
  // pixel, and `out` can be written as far behind each row (out_stride leaves room).
  void (*horizontal)(const std::uint8_t* const* rows, int row_count, const AxisWeights& axis, std::uint8_t* out,
                     std::size_t out_stride);
  // Output y of the axis = weighted sum of the rows first[y]... of `in`, over row_bytes bytes.
  void (*vertical)(const std::uint8_t* in, std::size_t in_stride, const AxisWeights& axis, int y, std::size_t row_bytes,
                   std::uint8_t* out);
};

const ResizePasses& portable_passes();
// Those of AVX2 when this processor has it, else the portable ones.
const ResizePasses& best_passes();

}  // namespace millrace
