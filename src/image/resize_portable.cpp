#include <algorithm>

#include "resize_passes.h"

namespace millrace {

namespace {

constexpr std::int32_t half = 1 << (weight_bits - 1);

std::uint8_t round_to_byte(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> weight_bits, 0, 255));
}

void horizontal_row(const std::uint8_t* row, const AxisWeights& axis, std::uint8_t* out) {
  for (int x = 0; x < axis.size; ++x, out += 3) {
    const std::uint8_t* in = row + axis.first[x] * 3;
    const std::int32_t* weights = &axis.weights[static_cast<std::size_t>(x) * axis.taps];
    std::int32_t sum[3] = {half, half, half};
    for (int k = 0; k < axis.inputs; ++k, in += 3) {
      for (int c = 0; c < 3; ++c) sum[c] += in[c] * weights[k];
    }
    for (int c = 0; c < 3; ++c) out[c] = round_to_byte(sum[c]);
  }
}

void portable_horizontal(const std::uint8_t* const* rows, int row_count, const AxisWeights& axis, std::uint8_t* out,
                         std::size_t out_stride) {
  for (int y = 0; y < row_count; ++y) horizontal_row(rows[y], axis, out + y * out_stride);
}

void portable_vertical(const std::uint8_t* in, std::size_t in_stride, const AxisWeights& axis, int y,
                       std::size_t row_bytes, std::uint8_t* out) {
  const std::uint8_t* top = in + axis.first[y] * in_stride;
  const std::int32_t* weights = &axis.weights[static_cast<std::size_t>(y) * axis.taps];
  for (std::size_t i = 0; i < row_bytes; ++i) {
    std::int32_t sum = half;
    for (int k = 0; k < axis.inputs; ++k) sum += top[k * in_stride + i] * weights[k];
    out[i] = round_to_byte(sum);
  }
}

}  // namespace

const ResizePasses& portable_passes() {
  static constexpr ResizePasses passes{[](AxisWeights&) {}, portable_horizontal, portable_vertical};
  return passes;
}

}  // namespace millrace
