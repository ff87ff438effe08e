#include "spoil.h"

#include <algorithm>
#include <random>

namespace millrace::shapes {
namespace {

std::uint8_t level(double value) {
  return static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0));
}

}  // namespace

Image blurred(Image image, int times) {
  for (; times > 0; --times) {
    const Image before = image;
    for (int y = 0; y < image.height; ++y)
      for (int x = 0; x < image.width; ++x)
        for (int c = 0; c < 3; ++c) {
          int sum = 0;
          for (int dy = -1; dy <= 1; ++dy)
            for (int dx = -1; dx <= 1; ++dx) {
              const int nx = std::clamp(x + dx, 0, image.width - 1), ny = std::clamp(y + dy, 0, image.height - 1);
              sum += before.pixels[static_cast<std::size_t>((ny * image.width + nx) * 3 + c)];
            }
          image.pixels[static_cast<std::size_t>((y * image.width + x) * 3 + c)] = level(sum / 9.0);
        }
  }
  return image;
}

Image noisy(Image image, double deviation, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0, deviation);
  for (auto& pixel : image.pixels) pixel = level(pixel + normal(generator));
  return image;
}

}  // namespace millrace::shapes
