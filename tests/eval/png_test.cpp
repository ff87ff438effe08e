#include "millrace/eval/png.h"

#include <gtest/gtest.h>

#include "millrace/core/files.h"
#include "millrace/data/decode.h"

namespace millrace {
namespace {

Image plain(int width, int height, std::uint8_t level) {
  return {width, height, Pixels(std::size_t{3} * width * height, level)};
}

TEST(Png, ReadsBackPixelForPixel) {
  Image image = plain(7, 5, 0);
  for (std::size_t i = 0; i < image.pixels.size(); ++i) image.pixels[i] = static_cast<std::uint8_t>(i * 37);
  const auto path = std::filesystem::path(testing::TempDir()) / "millrace_png_test.png";
  write_png(path, image);
  const auto decoded = decode_image(read_file(path));
  std::filesystem::remove(path);
  ASSERT_TRUE(std::holds_alternative<Image>(decoded));
  EXPECT_EQ(std::get<Image>(decoded).width, 7);
  EXPECT_EQ(std::get<Image>(decoded).height, 5);
  EXPECT_EQ(std::get<Image>(decoded).pixels, image.pixels);
}

TEST(Grid, CellsWithGaps) {
  const std::vector<Image> images = {plain(4, 3, 10), plain(4, 3, 20), plain(4, 3, 30)};
  const Image grid = make_grid(images);  // 2 x 2, the last cell empty
  EXPECT_EQ(grid.width, 10);
  EXPECT_EQ(grid.height, 8);
  const auto level = [&](int x, int y) { return int{grid.pixels[3 * (std::size_t(y) * grid.width + x)]}; };
  EXPECT_EQ(level(0, 0), 10);
  EXPECT_EQ(level(3, 2), 10);
  EXPECT_EQ(level(4, 0), 0);  // gap
  EXPECT_EQ(level(6, 0), 20);
  EXPECT_EQ(level(9, 2), 20);
  EXPECT_EQ(level(0, 4), 0);
  EXPECT_EQ(level(0, 5), 30);
  EXPECT_EQ(level(6, 5), 0);
}

TEST(Grid, ColumnsCanBeChosen) {
  const std::vector<Image> images(6, plain(2, 2, 1));
  EXPECT_EQ(make_grid(images, 6).width, 6 * 2 + 5 * 2);
  EXPECT_EQ(make_grid(images, 6).height, 2);
  EXPECT_EQ(make_grid(std::span(images).first(1)).width, 2);
}

}  // namespace
}  // namespace millrace
