// The quickstart's judge: right about every true drawing, and not content with anything else.
#include <gtest/gtest.h>

#include <algorithm>

#include "millrace/image/decode.h"
#include "millrace/image/encode_jpeg.h"
#include "tools/judge.h"
#include "tools/scene.h"
#include "tools/spoil.h"

namespace millrace::shapes {
namespace {

Image from_jpeg(const Image& image) {
  return std::get<Image>(decode_image(encode_jpeg(image, 60)));
}

void expect_shown(const Scene& scene, const Image& image, const char* how) {
  const auto verdict = look_at(image);
  EXPECT_STREQ(verdict.colour.c_str(), colours[scene.colour].name) << how;
  EXPECT_STREQ(verdict.background.c_str(), backgrounds[scene.background].name) << how;
  EXPECT_STREQ(verdict.shape.c_str(), shape_names[scene.shape.kind]) << how;
}

TEST(Judge, IsRightAboutEveryDrawing) {
  for (const int side : {32, 48, 64, 128})
    for (unsigned index = 0; index < 250; ++index) {
      SCOPED_TRACE(testing::Message() << "side " << side << ", scene " << index);
      const auto scene = scene_of(3, index);
      const auto image = draw(scene, side);
      expect_shown(scene, image, "as it is");
      expect_shown(scene, blurred(image, side / 32), "blurred");
      expect_shown(scene, noisy(image, 30, index), "noisy");
      expect_shown(scene, noisy(blurred(image, side / 32), 20, index), "blurred and noisy");
      expect_shown(scene, from_jpeg(image), "a JPEG");
    }
}

TEST(Judge, ASpeckOfTheSameColourDoesNotChangeTheShape) {
  for (int kind = 0; kind < 3; ++kind) {
    const Scene scene{{kind, 0.6f, 0.6f, 0.3f}, 1, 0}, speck{{1, 0.06f, 0.06f, 0.06f}, 1, 0};
    auto image = draw(scene, 32);
    const auto other = draw(speck, 32);
    for (std::size_t i = 0; i < image.pixels.size(); ++i) image.pixels[i] = std::min(image.pixels[i], other.pixels[i]);
    expect_shown(scene, image, "with a speck");
  }
}

// What pictures look like before a model has learned anything, and halfway.
TEST(Judge, WhatIsNoneOfTheThreeIsNone) {
  const auto shape_in = [](const Image& image) { return look_at(image).shape; };
  const Image white{32, 32, Pixels(32 * 32 * 3, 255)};
  EXPECT_EQ(shape_in(white), "none");
  EXPECT_EQ(look_at(white).colour, "none");
  for (unsigned seed = 0; seed < 50; ++seed)
    EXPECT_EQ(shape_in(noisy({32, 32, Pixels(32 * 32 * 3, 128)}, 80, seed)), "none") << seed;
  const auto both = [](const Shape& a, const Shape& b) {
    auto image = draw({a, 0, 0}, 32);
    const auto other = draw({b, 0, 0}, 32);
    for (std::size_t i = 0; i < image.pixels.size(); ++i) image.pixels[i] = std::min(image.pixels[i], other.pixels[i]);
    return image;
  };
  EXPECT_EQ(shape_in(both({0, 0.25f, 0.25f, 0.2f}, {1, 0.5f, 0.5f, 0.2f})), "none") << "two that have grown together";
  EXPECT_EQ(shape_in(both({1, 0.5f, 0.25f, 0.2f}, {1, 0.5f, 0.6f, 0.2f})), "none") << "a high rectangle";
  const auto outer = draw({{0, 0.5f, 0.5f, 0.4f}, 0, 0}, 32), hole = draw({{0, 0.5f, 0.5f, 0.28f}, 0, 0}, 32);
  Image ring = outer, half = outer;
  for (std::size_t i = 0; i < ring.pixels.size(); ++i) {
    if (hole.pixels[i - i % 3 + 1] < 255) ring.pixels[i] = 255;  // red has less green than white
    if (i < ring.pixels.size() / 2) half.pixels[i] = 255;
  }
  EXPECT_EQ(shape_in(ring), "none") << "a ring";
  EXPECT_EQ(shape_in(half), "none") << "half a circle";
}

// The right colour on the right ground is not enough: of each shape, what an answer of another kind is taken for.
TEST(Judge, ShapesAreToldApart) {
  for (int kind = 0; kind < 3; ++kind)
    for (int other = 0; other < 3; ++other) {
      const Scene asked{{kind, 0.5f, 0.5f, 0.3f}, 0, 0}, painted{{other, 0.5f, 0.5f, 0.3f}, 0, 0};
      EXPECT_EQ(look_at(draw(painted, 32)).shape == shape_names[asked.shape.kind], kind == other);
    }
}

}  // namespace
}  // namespace millrace::shapes
