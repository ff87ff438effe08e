#include "resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "resize_passes.h"

// Compiled without fused multiply-add (cmake/Toolchain.cmake): weights must round as Pillow's do.
namespace millrace {

namespace {

double bilinear(double x) {
  x = std::abs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

double lanczos(double x) {
  return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
}

struct Kernel {
  double (*weight)(double);
  double support;
};

Kernel kernel_of(ResizeFilter filter) {
  switch (filter) {
    case ResizeFilter::bilinear:
      return {bilinear, 1.0};
    case ResizeFilter::bicubic:
      return {bicubic, 2.0};
    case ResizeFilter::lanczos:
      return {lanczos, 3.0};
  }
  return {bilinear, 1.0};
}

std::int32_t to_fixed(double weight) {
  return static_cast<std::int32_t>((weight < 0 ? -0.5 : 0.5) + weight * (1 << weight_bits));
}

// Two neighbouring weights as 16-bit halves: what one multiply-add instruction takes.
void split_weights(AxisWeights& axis) {
  axis.low.resize(axis.weights.size() / 2);
  axis.high.resize(axis.weights.size() / 2);
  const auto low = [](std::int32_t weight) { return static_cast<std::uint32_t>(weight & ((1 << split_bits) - 1)); };
  const auto high = [](std::int32_t weight) { return static_cast<std::uint32_t>(weight >> split_bits) & 0xFFFF; };
  for (std::size_t i = 0; i < axis.low.size(); ++i) {
    const std::int32_t even = axis.weights[2 * i], odd = axis.weights[2 * i + 1];
    axis.low[i] = low(even) | low(odd) << 16;
    axis.high[i] = high(even) | high(odd) << 16;
  }
}

// The exact weights of one output: those of `count` inputs from `first`.
struct Span {
  int first, count;
};

// The kernel is stretched when shrinking (that is the antialias) and cut at the border.
Span span_of_output(int output, int in, double scale, const Kernel& kernel) {
  const double support = kernel.support * std::max(scale, 1.0), center = (output + 0.5) * scale;
  const int first = std::max(static_cast<int>(center - support + 0.5), 0);
  return {first, std::min(static_cast<int>(center + support + 0.5), in) - first};
}

// Normalised weights.
Span plan_output(int output, int in, double scale, const Kernel& kernel, double* weights) {
  const auto [first, count] = span_of_output(output, in, scale, kernel);
  const double inverse = 1.0 / std::max(scale, 1.0), center = (output + 0.5) * scale;
  double sum = 0;
  for (int k = 0; k < count; ++k) sum += weights[k] = kernel.weight((k + first - center + 0.5) * inverse);
  for (int k = 0; k < count && sum != 0; ++k) weights[k] /= sum;
  return {first, count};
}

// Outputs begin, begin + 1, ... (from the end downwards when mirrored) of an axis resized from `in` to `full` pixels.
void plan_axis(int in, int full, int begin, int size, bool mirrored, ResizeFilter filter, AxisWeights& axis) {
  const Kernel kernel = kernel_of(filter);
  const double scale = static_cast<double>(in) / full;
  const int most = static_cast<int>(std::ceil(kernel.support * std::max(scale, 1.0))) * 2 + 1;
  thread_local std::vector<double> exact;
  thread_local std::vector<std::int32_t> fixed;
  thread_local std::vector<Span> spans;
  exact.resize(most);
  fixed.resize(static_cast<std::size_t>(size) * most);
  spans.resize(size);

  axis.inputs = 1;
  for (int i = 0; i < size; ++i) {
    Span span = plan_output(begin + (mirrored ? size - 1 - i : i), in, scale, kernel, exact.data());
    std::int32_t* weights = &fixed[static_cast<std::size_t>(i) * most];
    std::transform(exact.begin(), exact.begin() + span.count, weights, to_fixed);
    while (span.count > 1 && weights[span.count - 1] == 0) --span.count;  // fewer taps, the same sums
    axis.inputs = std::max(axis.inputs, span.count);
    spans[i] = span;
  }

  axis.size = size;
  axis.taps = (axis.inputs + 1) / 2 * 2;
  axis.inputs = std::min(axis.taps, in);
  axis.first.resize(size);
  axis.weights.assign(static_cast<std::size_t>(size) * axis.taps, 0);
  for (int i = 0; i < size; ++i) {
    axis.first[i] = std::min(spans[i].first, in - axis.inputs);  // further left at the right border, behind zeros
    std::int32_t* weights = &axis.weights[static_cast<std::size_t>(i) * axis.taps];
    std::copy_n(&fixed[static_cast<std::size_t>(i) * most], spans[i].count, weights + spans[i].first - axis.first[i]);
  }
  split_weights(axis);
}

// Buffers that live as long as the thread: an image of the usual size then allocates nothing but its result.
struct Scratch {
  AxisWeights across, down;
  std::vector<std::uint8_t> rows, last_rows;  // rows: between the passes
  std::vector<const std::uint8_t*> row_pointers;
};

// Rows [top, top + count) of the source; those at the end of the buffer are copied to where wide loads may read on.
const std::uint8_t* const* readable_rows(const PixelView& source, int top, int count, Scratch& scratch) {
  const std::size_t row_bytes = static_cast<std::size_t>(source.width) * 3, padded = row_bytes + row_padding;
  const auto readable = [&](const std::uint8_t* row) {
    return source.end - row >= static_cast<std::ptrdiff_t>(padded);
  };
  scratch.row_pointers.resize(count);
  std::size_t copies = 0;
  for (int y = 0; y < count; ++y) {
    scratch.row_pointers[y] = source.pixels + (top + y) * source.stride;
    copies += !readable(scratch.row_pointers[y]);
  }
  scratch.last_rows.resize(copies * padded);
  std::uint8_t* copy = scratch.last_rows.data();
  for (const std::uint8_t*& row : scratch.row_pointers) {
    if (readable(row)) continue;
    std::memcpy(copy, row, row_bytes);
    row = copy;
    copy += padded;
  }
  return scratch.row_pointers.data();
}

void copy_window(const PixelView& source, const ResizeTarget& target, std::uint8_t* out) {
  const std::size_t row_bytes = static_cast<std::size_t>(target.width) * 3;
  for (int y = 0; y < target.height; ++y) {
    std::memcpy(out + y * row_bytes, source.pixels + (target.top + y) * source.stride + target.left * 3, row_bytes);
  }
}

// Row by row, so that rows go from one pass to the other within the first-level cache.
void across_then_down(const PixelView& source, const ResizeTarget& target, Scratch& scratch, std::uint8_t* out,
                      const ResizePasses& passes) {
  passes.plan_horizontal(scratch.across);
  const int top = scratch.down.first.front();
  const int bottom = scratch.down.first.back() + scratch.down.inputs;
  for (int& first : scratch.down.first) first -= top;

  const std::size_t row_bytes = static_cast<std::size_t>(target.width) * 3, stride = row_bytes + row_padding;
  scratch.rows.resize((bottom - top) * stride);
  const std::uint8_t* const* in_rows = readable_rows(source, top, bottom - top, scratch);
  int done = 0;
  for (int y = 0; y < target.height; ++y) {
    const int needed = scratch.down.first[y] + scratch.down.inputs;
    if (needed > done) {
      const int end = std::min(std::max(needed, done + 4), bottom - top);
      passes.horizontal(in_rows + done, end - done, scratch.across, scratch.rows.data() + done * stride, stride);
      done = end;
    }
    passes.vertical(scratch.rows.data(), stride, scratch.down, y, row_bytes, out + y * row_bytes);
  }
}

// Four rows at a time, of the columns that the window is made of.
void down_then_across(const PixelView& source, const ResizeTarget& target, Scratch& scratch, std::uint8_t* out,
                      const ResizePasses& passes) {
  constexpr int group = 4;
  const auto [least, most] = std::minmax_element(scratch.across.first.begin(), scratch.across.first.end());
  const int left = *least, columns = *most + scratch.across.inputs - left;
  for (int& first : scratch.across.first) first -= left;
  passes.plan_horizontal(scratch.across);

  const std::size_t in_bytes = static_cast<std::size_t>(columns) * 3, in_stride = in_bytes + row_padding;
  const std::size_t out_bytes = static_cast<std::size_t>(target.width) * 3, out_stride = out_bytes + row_padding;
  scratch.rows.resize(group * (in_stride + out_stride));
  std::uint8_t* const made = scratch.rows.data() + group * in_stride;
  const std::uint8_t* rows[group];
  for (int i = 0; i < group; ++i) rows[i] = scratch.rows.data() + i * in_stride;
  for (int y = 0; y < target.height; y += group) {
    const int count = std::min(group, target.height - y);
    for (int i = 0; i < count; ++i)
      passes.vertical(source.pixels + static_cast<std::size_t>(left) * 3, source.stride, scratch.down, y + i, in_bytes,
                      scratch.rows.data() + i * in_stride);
    passes.horizontal(rows, count, scratch.across, made, out_stride);
    for (int i = 0; i < count; ++i) std::memcpy(out + (y + i) * out_bytes, made + i * out_stride, out_bytes);
  }
}

void run(const PixelView& source, const ResizeTarget& target, ResizeFilter filter, std::uint8_t* out,
         const ResizePasses& passes) {
  const bool across = target.full_width != source.width || target.mirrored;
  const bool down = target.full_height != source.height;
  if (!across && !down) return copy_window(source, target, out);

  // A pass with equal sizes has single weights of one, so it copies exactly.
  thread_local Scratch scratch;
  plan_axis(source.width, target.full_width, target.left, target.width, target.mirrored, filter, scratch.across);
  plan_axis(source.height, target.full_height, target.top, target.height, false, filter, scratch.down);
  const bool down_first = goes_down_first(source.width, source.height, target.full_width, target.full_height);
  (down_first ? down_then_across : across_then_down)(source, target, scratch, out, passes);
}

}  // namespace

OutputWeights weights_of_output(int output, int in, int full, ResizeFilter filter) {
  const Kernel kernel = kernel_of(filter);
  const double scale = static_cast<double>(in) / full;
  OutputWeights result;
  result.weights.resize(static_cast<std::size_t>(span_of_output(output, in, scale, kernel).count));
  result.first = plan_output(output, in, scale, kernel, result.weights.data()).first;
  return result;
}

PixelRange inputs_of_resize(int in, int full, int begin, int size, ResizeFilter filter) {
  const Kernel kernel = kernel_of(filter);
  const double scale = static_cast<double>(in) / full;
  const Span first = span_of_output(begin, in, scale, kernel);
  const Span last = span_of_output(begin + size - 1, in, scale, kernel);
  return {first.first, last.first + last.count};
}

void resize(const PixelView& source, const ResizeTarget& target, ResizeFilter filter, std::uint8_t* out) {
  run(source, target, filter, out, best_passes());
}

void resize_portable(const PixelView& source, const ResizeTarget& target, ResizeFilter filter, std::uint8_t* out) {
  run(source, target, filter, out, portable_passes());
}

}  // namespace millrace
