#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "image/golden_images.h"
#include "millrace/image/decode.h"
#include "millrace/image/transform.h"
#include "resize.h"

namespace millrace {
namespace {

using Policy = TransformConfig::Policy;
using Crop = TransformConfig::Crop;
using Interpolation = TransformConfig::Interpolation;

Policy policy_of(const std::string& name) {
  return name == "crop_then_resize" ? Policy::crop_then_resize : Policy::resize_then_crop;
}

Interpolation interpolation_of(const std::string& name) {
  return std::map<std::string, Interpolation>{
      {"bilinear", Interpolation::bilinear}, {"bicubic", Interpolation::bicubic}, {"lanczos", Interpolation::lanczos}}
      .at(name);
}

// Reproducible values without a pattern.
Image noise_image(int width, int height) {
  Image image{width, height, Pixels(static_cast<std::size_t>(width) * height * 3)};
  std::uint32_t state = 1;
  for (auto& value : image.pixels) value = static_cast<std::uint8_t>((state = state * 1664525 + 1013904223) >> 24);
  return image;
}

Image mirrored(Image image) {
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width / 2; ++x) {
      auto* row = image.pixels.data() + static_cast<std::size_t>(y) * image.width * 3;
      std::swap_ranges(row + 3 * x, row + 3 * x + 3, row + 3 * (image.width - 1 - x));
    }
  }
  return image;
}

// Other columns than those that the transform asks for do not change the result.
TEST(Transform, OnlyItsColumnsMatter) {
  for (const auto& [width, height] : {std::pair{301, 97}, {97, 301}, {160, 120}, {64, 64}, {33, 30}}) {
    // The square's own, and what lanczos, the widest filter, reaches on each side: three pixels of the result.
    const int shorter = std::min(width, height), most = shorter + 2 * (3 * ((shorter + 63) / 64) + 1);
    for (const auto policy : {Policy::resize_then_crop, Policy::crop_then_resize}) {
      for (const auto interpolation : {Interpolation::bilinear, Interpolation::bicubic, Interpolation::lanczos}) {
        for (const auto crop : {Crop::center, Crop::random}) {
          const TransformConfig config{
              .resolution = 64, .policy = policy, .crop = crop, .interpolation = interpolation, .flip = 0.5};
          for (std::uint64_t sample = 0; sample < 4; ++sample) {
            const RngKey key{3, sample, 0};
            const Image image = noise_image(width, height);
            const auto columns = columns_of_transform(width, height, config, key);
            ASSERT_LE(columns.end, width);
            Image cut = image;
            for (int y = 0; y < height; ++y)
              for (int x = 0; x < width; ++x)
                if (x < columns.begin || x >= columns.end) cut.pixels[(std::size_t(y) * width + x) * 3 + 1] ^= 0xFF;
            EXPECT_EQ(sha256(transform_image(cut, config, key)), sha256(transform_image(image, config, key)))
                << width << "x" << height;
            EXPECT_LE(columns.end - columns.begin, most) << width << "x" << height;
          }
        }
      }
    }
  }
}

TEST(Transform, EqualsPillow) {
  int compared = 0;
  for (const auto& [name, expected] : golden_images().items()) {
    if (expected.contains("failure")) continue;
    const auto image = decode_image(golden_file(name));
    ASSERT_TRUE(std::holds_alternative<Image>(image)) << name;
    for (const auto& wanted : expected["transforms"]) {
      const TransformConfig config{.resolution = wanted["resolution"],
                                   .policy = policy_of(wanted["policy"]),
                                   .interpolation = interpolation_of(wanted["interpolation"])};
      const Image out = transform_image(std::get<Image>(image), config, {});
      EXPECT_EQ(sha256(out), wanted["sha256"].get<std::string>())
          << name << " " << wanted << ", first pixels of the middle row: " << testing::PrintToString(probe_pixels(out));
      ++compared;
    }
  }
  EXPECT_GT(compared, 500);
}

TEST(Transform, PortableAndFastPassesGiveTheSameBytes) {
  for (const auto& [width, height] : {std::pair{1, 1}, {3, 50}, {50, 3}, {97, 131}, {300, 200}, {640, 17}}) {
    const Image image = noise_image(width, height);
    const PixelView source{image.pixels.data(), image.pixels.data() + image.pixels.size(),
                           static_cast<std::size_t>(width) * 3, width, height};
    for (const ResizeFilter filter : {ResizeFilter::bilinear, ResizeFilter::bicubic, ResizeFilter::lanczos}) {
      for (const auto& [full_width, full_height] : {std::pair{7, 5}, {64, 64}, {65, 300}, {width, 33}, {33, height}}) {
        const ResizeTarget target{full_width,
                                  full_height,
                                  full_width / 5,
                                  full_height / 5,
                                  full_width - full_width / 4,
                                  full_height - full_height / 4,
                                  filter == ResizeFilter::lanczos};
        std::vector<std::uint8_t> fast(static_cast<std::size_t>(target.width) * target.height * 3), portable = fast;
        resize(source, target, filter, fast.data());
        resize_portable(source, target, filter, portable.data());
        EXPECT_EQ(fast, portable) << width << " x " << height << " to " << full_width << " x " << full_height;
      }
    }
  }
}

// The window alone equals the same window of the whole.
TEST(Transform, WindowIsPartOfTheWhole) {
  const Image image = noise_image(120, 80);
  const PixelView source{image.pixels.data(), image.pixels.data() + image.pixels.size(), 360, 120, 80};
  std::vector<std::uint8_t> whole(90 * 60 * 3), window(40 * 30 * 3);
  resize(source, {90, 60, 0, 0, 90, 60}, ResizeFilter::bicubic, whole.data());
  resize(source, {90, 60, 21, 11, 40, 30}, ResizeFilter::bicubic, window.data());
  for (int y = 0; y < 30; ++y) {
    const auto* row = &whole[((y + 11) * 90 + 21) * 3];
    EXPECT_TRUE(std::equal(row, row + 120, &window[y * 120])) << "row " << y;
  }
}

TEST(Transform, FlipMirrorsTheCrop) {
  for (const auto& [width, height] : {std::pair{64, 64}, {64, 90}, {101, 77}}) {
    for (const Policy policy : {Policy::resize_then_crop, Policy::crop_then_resize}) {
      const Image image = noise_image(width, height);
      const Image plain = transform_image(image, {.resolution = 64, .policy = policy}, {});
      const Image flipped = transform_image(image, {.resolution = 64, .policy = policy, .flip = 1.0}, {});
      EXPECT_EQ(flipped.pixels, mirrored(plain).pixels) << width << " x " << height;
    }
  }
}

TEST(Transform, FlipFollowsTheKey) {
  const Image image = noise_image(32, 32);
  int flips = 0;
  for (std::uint64_t sample = 0; sample < 200; ++sample) {
    const RngKey key{420, sample, 1};
    const bool flipped = transform_image(image, {.resolution = 32, .flip = 0.3}, key).pixels != image.pixels;
    EXPECT_EQ(flipped, uniform(key, Purpose::flip) < 0.3);
    flips += flipped;
  }
  EXPECT_GT(flips, 30);
  EXPECT_LT(flips, 90);
}

TEST(Transform, RandomCropFollowsTheKeyAndReachesBothEnds) {
  constexpr int size = 32, longer = 40;
  constexpr std::uint64_t places = longer - size + 1;
  for (const bool wide : {true, false}) {
    for (const Policy policy : {Policy::resize_then_crop, Policy::crop_then_resize}) {
      const Image image = wide ? noise_image(longer, size) : noise_image(size, longer);
      std::set<int> seen;
      for (std::uint64_t sample = 0; sample < 300; ++sample) {
        const RngKey key{7, sample, 0};
        const Image out = transform_image(image, {.resolution = size, .policy = policy, .crop = Crop::random}, key);
        const int place = static_cast<int>(uniform_int(key, Purpose::crop, places, wide ? 0u : 1u));
        const auto begin = image.pixels.begin() + 3 * place * (wide ? 1 : size);
        EXPECT_TRUE(std::equal(out.pixels.begin(), out.pixels.begin() + 3 * size, begin)) << place;
        seen.insert(place);
      }
      EXPECT_EQ(seen.size(), places);
    }
  }
}

TEST(Transform, ExtremeShapesNeedNoHugeBuffers) {
  const Image strip = noise_image(2, 20000);
  EXPECT_EQ(transform_image(strip, {.resolution = 512}, {}).pixels.size(), 512u * 512 * 3);
}

}  // namespace
}  // namespace millrace
