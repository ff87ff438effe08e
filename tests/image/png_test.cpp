#include <gtest/gtest.h>

#include "core/temp_dir.h"
#include "millrace/core/files.h"
#include "millrace/image/decode.h"
#include "millrace/image/png.h"

namespace millrace {
namespace {

Image uniform(int width, int height, std::uint8_t level) {
  return {width, height, Pixels(std::size_t{3} * width * height, level)};
}

TEST(Png, ReadsBackPixelForPixel) {
  Image image = uniform(7, 5, 0);
  for (std::size_t i = 0; i < image.pixels.size(); ++i) image.pixels[i] = static_cast<std::uint8_t>(i * 37);
  const test::TempDir folder;
  write_png(folder / "image.png", image);
  const auto decoded = decode_image(read_file(folder / "image.png"));
  ASSERT_TRUE(std::holds_alternative<Image>(decoded));
  EXPECT_EQ(std::get<Image>(decoded).width, 7);
  EXPECT_EQ(std::get<Image>(decoded).height, 5);
  EXPECT_EQ(std::get<Image>(decoded).pixels, image.pixels);
}

TEST(Png, TextsAreReadBackAndDamageIsSeen) {
  const PngText text = {{"prompt", "größer \"<b>\"\n二"}, {"seed", "7"}, {"empty", ""}};
  const auto png = with_png_text(encode_png(uniform(9, 4, 77)), text);
  EXPECT_EQ(read_png_text(png), text);
  EXPECT_EQ(std::get<Image>(decode_image(png)).pixels, uniform(9, 4, 77).pixels);
  EXPECT_EQ(read_png_text(encode_png(uniform(9, 4, 77))), PngText());
  for (std::size_t size = 0; size < png.size(); ++size) EXPECT_FALSE(read_png_text(png.substr(0, size))) << size;
  for (std::size_t place = 8; place < png.size(); ++place) {
    auto damaged = png;
    damaged[place] ^= 0x20;
    EXPECT_FALSE(read_png_text(damaged)) << place;
  }
}

}  // namespace
}  // namespace millrace
