#include "millrace/image/pillow_resize.h"

#include <algorithm>

#include "resize.h"

// Compiled without fused multiply-add, as resize.cpp.
namespace millrace {
namespace {

constexpr std::size_t channels = 3;

std::vector<float> planes_of(const Image& image) {
  const auto size = static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.height);
  std::vector<float> planes(channels * size);
  for (std::size_t i = 0; i < size; ++i)
    for (std::size_t c = 0; c < channels; ++c) planes[c * size + i] = image.pixels[i * channels + c];
  return planes;
}

// [rows][in] -> [rows][out]. Sums are made in double and rounded to float once, here as in the next, as Pillow does for
// mode "F".
std::vector<float> resize_rows(const std::vector<float>& from, std::size_t rows, int in, int out) {
  if (in == out) return from;
  std::vector<float> to(rows * static_cast<std::size_t>(out));
  for (int x = 0; x < out; ++x) {
    const auto [first, weights] = weights_of_output(x, in, out, ResizeFilter::bicubic);
    for (std::size_t row = 0; row < rows; ++row) {
      const float* inputs = &from[row * static_cast<std::size_t>(in) + static_cast<std::size_t>(first)];
      double sum = 0;
      for (std::size_t k = 0; k < weights.size(); ++k) sum += inputs[k] * weights[k];
      to[row * static_cast<std::size_t>(out) + static_cast<std::size_t>(x)] = static_cast<float>(sum);
    }
  }
  return to;
}

// [planes][in][width] -> [planes][out][width].
std::vector<float> resize_columns(const std::vector<float>& from, std::size_t width, int in, int out) {
  if (in == out) return from;
  std::vector<float> to(channels * static_cast<std::size_t>(out) * width);
  std::vector<double> sums(width);
  for (std::size_t plane = 0; plane < channels; ++plane) {
    for (int y = 0; y < out; ++y) {
      const auto [first, weights] = weights_of_output(y, in, out, ResizeFilter::bicubic);
      std::fill(sums.begin(), sums.end(), 0.0);
      for (std::size_t k = 0; k < weights.size(); ++k) {
        const float* row = &from[(plane * static_cast<std::size_t>(in) + static_cast<std::size_t>(first) + k) * width];
        for (std::size_t x = 0; x < width; ++x) sums[x] += row[x] * weights[k];
      }
      float* result = &to[(plane * static_cast<std::size_t>(out) + static_cast<std::size_t>(y)) * width];
      for (std::size_t x = 0; x < width; ++x) result[x] = static_cast<float>(sums[x]);
    }
  }
  return to;
}

}  // namespace

Image resize_bicubic(const Image& image, int width, int height) {
  Image result = make_image(width, height);
  resize(view_of(image), {width, height, 0, 0, width, height}, ResizeFilter::bicubic, result.pixels.data());
  return result;
}

std::vector<float> resize_bicubic_float(const Image& image, int width, int height) {
  const auto rows = [](int count) { return channels * static_cast<std::size_t>(count); };
  const auto columns = [](int count) { return static_cast<std::size_t>(count); };
  if (goes_down_first(image.width, image.height, width, height)) {
    const auto low = resize_columns(planes_of(image), columns(image.width), image.height, height);
    return resize_rows(low, rows(height), image.width, width);
  }
  const auto narrow = resize_rows(planes_of(image), rows(image.height), image.width, width);
  return resize_columns(narrow, columns(width), image.height, height);
}

}  // namespace millrace
