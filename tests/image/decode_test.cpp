#include <gmock/gmock.h>

#include <cmath>
#include <set>

#include "image/golden_images.h"
#include "millrace/image/decode.h"
#include "millrace/image/orientation.h"

namespace millrace {
namespace {

using testing::HasSubstr;

Image expect_image(const std::variant<Image, DecodeFailure>& result, const std::string& name) {
  if (const auto* failure = std::get_if<DecodeFailure>(&result)) {
    ADD_FAILURE() << name << ": " << failure->detail;
    return {};
  }
  return std::get<Image>(result);
}

DecodeFailure expect_failure(std::string_view bytes, const ImageConfig& config = {}) {
  const auto result = decode_image(bytes, config);
  if (const auto* failure = std::get_if<DecodeFailure>(&result)) return *failure;
  ADD_FAILURE() << "decoded, though it should have failed";
  return {};
}

TEST(Decode, EqualsPillow) {
  for (const auto& [name, expected] : golden_images().items()) {
    if (expected.contains("failure")) continue;
    const Image image = expect_image(decode_image(golden_file(name)), name);
    EXPECT_EQ(image.width, expected["width"]) << name;
    EXPECT_EQ(image.height, expected["height"]) << name;
    EXPECT_EQ(sha256(image), expected["sha256"].get<std::string>())
        << name << ", first pixels of the middle row: " << testing::PrintToString(probe_pixels(image)) << " for "
        << expected["pixels"];
  }
}

TEST(Decode, AReusedImageHoldsOnlyTheNewOne) {
  Image image;
  for (const auto& [name, expected] : golden_images().items()) {
    if (decode_image_into(image, golden_file(name))) continue;
    EXPECT_EQ(sha256(image), expected["sha256"].get<std::string>()) << name;
  }
}

// A JPEG decoded in part has the same pixels in the columns asked for, and fails where the whole one does.
TEST(Decode, WantedColumnsAreThoseOfTheWholeImage) {
  int in_part = 0;
  const auto check = [&](const std::string& name, const ImageConfig& config, int enough) {
    const std::string bytes = golden_file(name);
    Image whole;
    const auto failure = decode_image_into(whole, bytes, config, {{}, enough});
    for (int left = 0; left < std::max(whole.width, 1); left += 7) {
      const auto wanted = [&](int width, int) {
        return PixelRange{std::min(left, width - 1), std::min(left + 9, width)};
      };
      Image part;
      const auto part_failure = decode_image_into(part, bytes, config, {wanted, enough});
      ASSERT_EQ(part_failure.has_value(), failure.has_value()) << name;
      if (failure) {
        EXPECT_EQ(part_failure->detail, failure->detail) << name;
        continue;
      }
      in_part += part.pixels != whole.pixels;
      const auto columns = wanted(whole.width, whole.height);
      for (int y = 0; y < whole.height; ++y) {
        const auto at = [&](const Image& image, int x) {
          return &image.pixels[(std::size_t(y) * image.width + x) * 3];
        };
        ASSERT_TRUE(std::equal(at(whole, columns.begin), at(whole, columns.end - 1) + 3, at(part, columns.begin)))
            << name << ", columns from " << left << ", row " << y;
      }
    }
  };
  for (const auto& [name, expected] : golden_images().items()) {
    check(name, {}, 0);
    check(name, {.exif = ImageConfig::Exif::apply}, 0);
    check(name, {.decode = ImageConfig::Decode::fast}, 24);
  }
  EXPECT_GT(in_part, 100);
}

TEST(Decode, FailsWherePillowDoes) {
  int failures = 0;
  for (const auto& [name, expected] : golden_images().items()) {
    if (!expected.contains("failure")) continue;
    // What is cut short inside its container is told by its decoder, which has the one word.
    const bool inside = name == "cut_chunk_lossless.webp" || name == "restarted_in_the_last_rows.jpg";
    EXPECT_EQ(expect_failure(golden_file(name)).error, inside ? DecodeError::undecodable : DecodeError::truncated)
        << name;
    ++failures;
  }
  EXPECT_GE(failures, 8);
}

// Every prefix of a file is truncated, or is too short to be recognised; only the last bytes (end marker, trailer) may
// be missing.
TEST(Decode, EveryPrefixIsTruncated) {
  for (const std::string name :
       {"baseline_420.jpg", "progressive_420.jpg", "gray.jpg", "rgb.png", "lossy.webp", "lossless.webp"}) {
    const std::string bytes = golden_file(name);
    for (std::size_t length = 12; length + 20 < bytes.size(); length += 37) {
      EXPECT_EQ(expect_failure(std::string_view(bytes).substr(0, length)).error, DecodeError::truncated)
          << name << " cut to " << length;
    }
  }
}

TEST(Decode, AnEarlyEndMarkerIsTruncation) {
  const std::string bytes = golden_file("baseline_420.jpg");
  EXPECT_EQ(expect_failure(bytes.substr(0, bytes.size() / 2) + "\xFF\xD9").error, DecodeError::truncated);
}

// The half of a download, begun again behind it, or whatever else a marker announces there.
TEST(Decode, OfAFileOfOneScanEachMarkerEndsThePixels) {
  const std::string bytes = golden_file("baseline_420.jpg"), half = bytes.substr(0, bytes.size() / 2);
  for (const std::string_view behind : {"\xFF\xD8", "\xFF\xC4", "\xFF\xDA", "\xFF\xDB", "\xFF\xE1", "\xFF\xFE"}) {
    const std::string rest = bytes.substr(bytes.find(behind) == bytes.npos ? 0 : bytes.find(behind));
    EXPECT_EQ(expect_failure(half + std::string(behind) + rest.substr(2)).error, DecodeError::truncated)
        << int(static_cast<unsigned char>(behind[1]));
  }
}

// As in Pillow: libjpeg goes on at the next restart.
TEST(Decode, ADamagedIntervalBetweenRestartsIsShown) {
  const std::string bytes = golden_file("restart.jpg");
  const Image whole = expect_image(decode_image(bytes), "restart.jpg");
  for (const std::string_view damage : {"\xFF\x01", "\xFF\x3A", "\xFF\xBF"}) {
    std::string damaged = bytes;
    damaged.replace(bytes.size() / 2, 2, damage);
    EXPECT_NE(expect_image(decode_image(damaged), "damaged").pixels, whole.pixels);
  }
}

// libjpeg smooths what it knows in part, over two blocks to each side.
TEST(Decode, WantedColumnsOfAFileWithoutItsLastScansAreThoseOfTheWholeImage) {
  int smoothed = 0;
  for (const std::string name : {"progressive_420.jpg", "progressive_444.jpg", "gray_progressive.jpg"}) {
    std::string bytes = golden_file(name);
    const Image complete = expect_image(decode_image(bytes), name);
    for (std::size_t scan; (scan = bytes.rfind("\xFF\xDA")) != bytes.find("\xFF\xDA");) {
      bytes.resize(scan);
      Image whole;
      ASSERT_FALSE(decode_image_into(whole, bytes + "\xFF\xD9")) << name;
      smoothed += whole.pixels != complete.pixels;
      for (int left = 0; left + 9 < whole.width; left += 7) {
        Image part;
        const auto wanted = [&](int, int) { return PixelRange{left, left + 9}; };
        ASSERT_FALSE(decode_image_into(part, bytes + "\xFF\xD9", {}, {wanted, 0})) << name;
        for (int y = 0; y < whole.height; ++y) {
          const auto first = (std::size_t(y) * whole.width + left) * 3;
          ASSERT_TRUE(std::equal(&whole.pixels[first], &whole.pixels[first + 27], &part.pixels[first]))
              << name << " up to byte " << scan << ", columns from " << left << ", row " << y;
        }
      }
    }
  }
  EXPECT_GE(smoothed, 10);
}

TEST(Decode, NamesWhatIsNoImage) {
  using namespace std::string_literals;
  const std::pair<std::string, std::string> cases[] = {
      {"GIF89a\x01\0\x01\0"s, "GIF"},
      {"BM\x46\0\0\0"s, "BMP"},
      {"\0\0\0\x1C"
       "ftypavif\0\0\0\0"s,
       "AVIF"},
      {"\0\0\0\x18"
       "ftyp\xFF\xFE"
       "4V\0\0\0\0"s,
       "a media file (\uFFFD\uFFFD4V)"},
      {"  <!DOCTYPE HTML><html>", "HTML"},
      {"<?xml version=\"1.0\"?><svg/>", "SVG"},
      {"<svg xmlns=\"http://www.w3.org/2000/svg\"/>", "SVG"},
      {"", "no bytes"},
      {"hello", "unknown bytes: 68 65 6c 6c 6f"},
  };
  for (const auto& [bytes, kind] : cases) {
    const DecodeFailure failure = expect_failure(bytes);
    EXPECT_EQ(failure.error, DecodeError::not_an_image) << kind;
    EXPECT_THAT(failure.detail, HasSubstr(kind));
  }
}

TEST(Decode, LimitsAreJudgedByTheHeader) {
  for (const std::string name : {"baseline_420.jpg", "rgb.png", "lossy.webp"}) {  // 131 x 97, 70 x 45, 131 x 97
    const std::string header = golden_file(name).substr(0, 1024);
    EXPECT_EQ(expect_failure(header).error, DecodeError::truncated) << name;
    EXPECT_EQ(expect_failure(header, {.max_pixels = 100}).error, DecodeError::too_large) << name;
    EXPECT_EQ(expect_failure(header, {.max_side = 60}).error, DecodeError::too_large) << name;
    EXPECT_EQ(expect_failure(header, {.max_bytes = {1000}}).error, DecodeError::too_large) << name;
    EXPECT_EQ(expect_failure(header, {.min_side = 98}).error, DecodeError::too_small) << name;
    EXPECT_EQ(expect_failure(header, {.min_pixels = 131 * 97 + 1}).error, DecodeError::too_small) << name;
  }
}

TEST(Decode, LimitsAreInclusive) {
  const std::string bytes = golden_file("baseline_420.jpg");
  const ImageConfig exactly{.min_side = 97,
                            .max_side = 131,
                            .min_pixels = 131 * 97,
                            .max_pixels = 131 * 97,
                            .max_ratio = 131.0 / 97,
                            .max_bytes = {bytes.size()}};
  expect_image(decode_image(bytes, exactly), "at all limits");
  const DecodeFailure failure = expect_failure(bytes, {.max_ratio = 1.35});
  EXPECT_EQ(failure.error, DecodeError::too_large);
  EXPECT_EQ(failure.detail, "131 x 97 pixels, more than 1.35 : 1");
}

TEST(Decode, OrientationIsAppliedAsPillowDoesOnlyWhenAsked) {
  int turned = 0;
  for (const auto& [name, expected] : golden_images().items()) {
    if (!expected.contains("upright")) continue;
    const Image stored = expect_image(decode_image(golden_file(name)), name);
    EXPECT_EQ(sha256(stored), expected["sha256"].get<std::string>()) << name;
    const Image upright = expect_image(decode_image(golden_file(name), {.exif = ImageConfig::Exif::apply}), name);
    EXPECT_EQ(upright.width, expected["upright"]["width"]) << name;
    EXPECT_EQ(upright.height, expected["upright"]["height"]) << name;
    EXPECT_EQ(sha256(upright), expected["upright"]["sha256"].get<std::string>()) << name;
    turned += sha256(upright) != sha256(stored);
  }
  EXPECT_GE(turned, 12);
}

// The levels are compared with img2dataset's in tests/download/image_test.cpp.
TEST(Decode, WhiteLiesBehindTransparentPixelsOnlyWhenAsked) {
  const std::set<std::string> transparent = {"gray_alpha16.png", "rgba16.png", "palette_transparent.png"};
  for (const auto& [name, expected] : golden_images().items()) {
    if (expected.contains("failure")) continue;
    Image image;
    EXPECT_FALSE(decode_image_into(image, golden_file(name), {}, {.on_white = true})) << name;
    EXPECT_EQ(expected["sha256"] != sha256(image), transparent.contains(name)) << name;
  }
}

// Every cut and every damaged byte of the metadata gives an orientation; the pixels stay what they are.
TEST(Decode, DamagedExifIsHarmless) {
  for (const std::string name : {"oriented_big_endian.jpg", "oriented.png", "oriented_prefixed.webp"}) {
    const std::string bytes = golden_file(name);
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ 0xA5);
      for (const std::string_view file : {std::string_view(damaged), std::string_view(bytes).substr(0, at)}) {
        const int orientation = read_orientation(file);
        ASSERT_TRUE(orientation >= 1 && orientation <= 8) << name << " at " << at;
      }
    }
  }
}

// How far the pixels of a smaller image are, on average, from the means of the squares that they stand for.
double distance_from_means(const Image& small, const Image& whole, int factor) {
  double sum = 0;
  int count = 0;
  for (int y = 0; y < whole.height / factor; ++y) {
    for (int x = 0; x < whole.width / factor * 3; ++x) {
      double mean = 0;
      for (int i = 0; i < factor * factor; ++i) {
        const int row = y * factor + i / factor, column = x / 3 * factor + i % factor;
        mean += whole.pixels[(std::size_t(row) * whole.width + column) * 3 + x % 3] / double(factor * factor);
      }
      sum += std::abs(small.pixels[std::size_t(y) * small.width * 3 + x] - mean);
      ++count;
    }
  }
  return sum / count;
}

TEST(Decode, FastHalvesDownToWhatIsEnough) {
  const ImageConfig fast{.decode = ImageConfig::Decode::fast};
  for (const std::string name : {"baseline_420.jpg", "progressive_420.jpg", "gray.jpg"}) {  // 131 x 97
    const Image whole = expect_image(decode_image(golden_file(name)), name);
    const std::pair<int, std::pair<int, int>> cases[] = {{0, {131, 97}}, {50, {131, 97}}, {49, {66, 49}},
                                                         {26, {66, 49}}, {25, {33, 25}},  {13, {17, 13}},
                                                         {1, {17, 13}},  {97, {131, 97}}, {500, {131, 97}}};
    for (const auto& [enough, size] : cases) {
      Image image;
      EXPECT_FALSE(decode_image_into(image, golden_file(name), fast, {{}, enough}).has_value());
      EXPECT_EQ(std::pair(image.width, image.height), size) << name << ", enough " << enough;
      EXPECT_LT(distance_from_means(image, whole, (131 + size.first - 1) / size.first), 2.5) << name << " " << enough;
      Image exact;
      EXPECT_FALSE(decode_image_into(exact, golden_file(name), {}, {{}, enough}).has_value());
      EXPECT_EQ(exact.pixels, whole.pixels) << "exact is the default";
    }
  }
}

TEST(Decode, DamageNeverCrashes) {
  for (const std::string name : {"baseline_420.jpg", "progressive_420.jpg", "cmyk.jpg", "palette.png",
                                 "rgb_interlaced.png", "lossy_alpha.webp", "lossless.webp", "animated.webp"}) {
    const std::string bytes = golden_file(name);
    for (std::size_t at = 0; at < bytes.size(); at += 1 + bytes.size() / 97) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x5B);
      (void)decode_image(damaged, {.max_pixels = 1 << 20});
    }
  }
}

}  // namespace
}  // namespace millrace
