#include "millrace/image/grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace millrace {
namespace {

constexpr int gap = 2;

Image plain(int width, int height, std::uint8_t level) {
  return {width, height, Pixels(std::size_t{3} * width * height, level)};
}

int level(const Image& image, int x, int y) {
  return image.pixels[3 * (std::size_t(y) * image.width + x)];
}

// The part of an image: pixels [left, left + width) of rows [top, top + height).
Pixels cut(const Image& image, int left, int top, int width, int height) {
  Pixels pixels;
  for (int y = top; y < top + height; ++y) {
    const auto row = image.pixels.begin() + std::ptrdiff_t{3} * (std::ptrdiff_t{y} * image.width + left);
    pixels.insert(pixels.end(), row, row + std::ptrdiff_t{3} * width);
  }
  return pixels;
}

bool is_black(const Pixels& pixels) {
  return std::ranges::all_of(pixels, [](int value) { return value == 0; });
}

TEST(Grid, CellsWithGaps) {
  const std::vector<Image> images = {plain(4, 3, 10), plain(4, 3, 20), plain(4, 3, 30)};
  const Image grid = make_grid(images);  // 2 x 2, the last cell empty
  EXPECT_EQ(grid.width, 10);
  EXPECT_EQ(grid.height, 8);
  EXPECT_EQ(level(grid, 0, 0), 10);
  EXPECT_EQ(level(grid, 3, 2), 10);
  EXPECT_EQ(level(grid, 4, 0), 0);  // gap
  EXPECT_EQ(level(grid, 6, 0), 20);
  EXPECT_EQ(level(grid, 9, 2), 20);
  EXPECT_EQ(level(grid, 0, 4), 0);
  EXPECT_EQ(level(grid, 0, 5), 30);
  EXPECT_EQ(level(grid, 6, 5), 0);
  EXPECT_EQ(make_grid(std::span(images).first(1)).pixels, images[0].pixels);
}

// Five images of 96 x 48, three columns, two rows.
struct Captioned {
  explicit Captioned(const std::vector<std::string>& captions) {
    for (int i = 0; i < 5; ++i) images.push_back(plain(96, 48, static_cast<std::uint8_t>(40 * (i + 1))));
    grid = make_grid(images, captions);
    text_height = (grid.height + gap) / 2 - 48 - gap;
  }
  int left(int i) const { return i % 3 * (96 + gap); }
  int top(int i) const { return i / 3 * (48 + text_height + gap); }
  Pixels image(int i) const { return cut(grid, left(i), top(i), 96, 48); }
  Pixels text(int i) const { return cut(grid, left(i), top(i) + 48, 96, text_height); }

  std::vector<Image> images;
  Image grid;
  int text_height;
};

TEST(Grid, CaptionsStandUnderTheirImages) {
  const Captioned some({"", "a cat", "", "", "two dogs"});
  EXPECT_EQ(some.grid.width, 3 * 96 + 2 * gap);
  EXPECT_GE(some.text_height, 8);
  EXPECT_LE(some.text_height, 24);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(some.image(i), some.images[i].pixels) << i;
    EXPECT_EQ(is_black(some.text(i)), i != 1 && i != 4) << i;
  }
  EXPECT_NE(some.text(1), some.text(4));
  for (int gap_x : {96, 97, 194, 195}) EXPECT_TRUE(is_black(cut(some.grid, gap_x, 0, 1, some.grid.height))) << gap_x;
  EXPECT_EQ(Captioned({"", "a cat", "", "", "two dogs"}).grid.pixels, some.grid.pixels);
  const Captioned none({"", "", "", "", ""});
  EXPECT_EQ(none.grid.pixels, make_grid(none.images).pixels);
}

TEST(Grid, SmallImagesAreEnlargedAboveCaptions) {
  std::vector<Image> images = {plain(40, 2, 10), plain(33, 3, 20)};
  images[0].pixels[3] = 200;  // pixel (1, 0)
  const std::vector<std::string> captions = {"a", "b"};
  const Image grid = make_grid(images, captions);  // three times as large
  EXPECT_EQ(grid.width, 2 * 120 + gap);
  EXPECT_EQ(level(grid, 2, 0), 10);
  for (int y = 0; y < 3; ++y)
    for (int x = 3; x < 6; ++x) EXPECT_EQ(level(grid, x, y), 200);
  EXPECT_EQ(level(grid, 6, 0), 10);
  EXPECT_EQ(level(grid, 3, 3), 10);
  EXPECT_EQ(level(grid, 122 + 98, 8), 20);
  EXPECT_EQ(level(grid, 122 + 99, 8), 0);
}

TEST(Grid, LongCaptionsAreCutAfterThreeLines) {
  const int line = Captioned({"a cat", "", "", "", ""}).text_height;
  const std::string words = "a photo of a red bicycle leaning on a garden wall at dawn";
  const Captioned wrapped({words, words + " and more", "a photo", "a red bicycle in rain", std::string(10000, 'W')});
  EXPECT_EQ(wrapped.text_height, 3 * line);
  EXPECT_EQ(wrapped.text(0), wrapped.text(1));  // what differs is behind the dots
  EXPECT_TRUE(is_black(cut(wrapped.grid, wrapped.left(2), wrapped.top(2) + 48 + line, 96, 2 * line)));
  EXPECT_FALSE(is_black(cut(wrapped.grid, wrapped.left(3), wrapped.top(3) + 48 + line, 96, line)));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(wrapped.image(i), wrapped.images[i].pixels) << i;
  for (int gap_x : {96, 97, 194, 195})
    EXPECT_TRUE(is_black(cut(wrapped.grid, gap_x, 0, 1, wrapped.grid.height))) << gap_x;
}

TEST(Grid, WrappingLosesNoLetters) {
  const std::string caption = "Wide mountains and wild rivers";
  const auto ink = [&](int width) {
    const std::vector<Image> images = {plain(width, 1, 0)};
    const Image grid = make_grid(images, std::span(&caption, 1));
    return std::accumulate(grid.pixels.begin(), grid.pixels.end(), 0.0);
  };
  EXPECT_NEAR(ink(100) / ink(400), 1, 0.05);  // smoothed letters differ with their place
}

TEST(Grid, OneQuestionMarkForALetterOutsideAscii) {
  const Captioned foreign({"caf\xC3\xA9", "\xE7\x8C\xAB", "a\tb\nc", "\xF0\x9F\x90\x88 \x7F", "\xFF\xFE"});
  const Captioned ascii({"caf?", "?", "a b c", "? ?", "??"});
  EXPECT_EQ(foreign.grid.pixels, ascii.grid.pixels);
}

}  // namespace
}  // namespace millrace
