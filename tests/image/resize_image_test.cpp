#include "millrace/image/resize_image.h"

#include <gtest/gtest.h>

#include <filesystem>

// What the resize makes of photos is compared with img2dataset's in tests/download/image_test.cpp.
namespace millrace {
namespace {

Image gradient(int width, int height) {
  Image image{width, height, Pixels(std::size_t{3} * width * height)};
  for (std::size_t i = 0; i < image.pixels.size(); ++i) image.pixels[i] = static_cast<std::uint8_t>(i % 251);
  return image;
}

const std::uint8_t* pixel(const Image& image, int x, int y) {
  return &image.pixels[3 * (std::size_t(y) * image.width + x)];
}

TEST(ResizeImage, AnOddPixelIsLostOrAddedAtTheEnd) {
  const Image image = gradient(8, 5);
  const Image cropped = crop_center(image, 5, 2);
  EXPECT_EQ(cropped.pixels.size(), 5u * 2 * 3);
  for (int y = 0; y < 2; ++y)
    EXPECT_TRUE(std::equal(pixel(cropped, 0, y), pixel(cropped, 0, y) + 15, pixel(image, 1, y + 1)));
  const Image bordered = add_borders(image, 11, 8, 7);
  EXPECT_EQ(crop_center(bordered, 8, 5).pixels, image.pixels);
  for (const auto& [x, y] : {std::pair{0, 3}, {9, 3}, {10, 3}, {4, 0}, {4, 6}, {4, 7}})
    EXPECT_EQ(pixel(bordered, x, y)[1], 7);
}

TEST(ResizeImage, TheSameSizeIsACopyAndMeansStayMeans) {
  const Image image = gradient(64, 48);
  EXPECT_EQ(resize_image(image, 64, 48).pixels, image.pixels);
  const Image half = resize_image({2, 2, Pixels{10, 20, 30, 11, 21, 31, 12, 22, 32, 13, 23, 33}}, 1, 1);
  EXPECT_EQ(half.pixels, (Pixels{12, 22, 32}));
}

int count_threads() {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}));
}

TEST(ResizeImage, OpenCVStartsNoThreads) {
  const int before = count_threads();
  (void)resize_image(gradient(3000, 2000), 1111, 777);
  (void)resize_image(gradient(300, 200), 3333, 2222);
  EXPECT_EQ(count_threads(), before);
}

}  // namespace
}  // namespace millrace
