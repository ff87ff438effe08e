#include "millrace/data/decode.h"

#include <gmock/gmock.h>

#include "data/golden_images.h"

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

DecodeFailure expect_failure(std::string_view bytes, const DecodeLimits& limits = {}) {
  const auto result = decode_image(bytes, limits);
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
    EXPECT_EQ(sha256(image), expected["sha256"])
        << name << ", first pixels of the middle row: " << testing::PrintToString(probe_pixels(image)) << " for "
        << expected["pixels"];
  }
}

TEST(Decode, AReusedImageHoldsOnlyTheNewOne) {
  Image image;
  for (const auto& [name, expected] : golden_images().items()) {
    if (decode_image_into(image, golden_file(name))) continue;
    EXPECT_EQ(sha256(image), expected["sha256"]) << name;
  }
}

// A JPEG decoded in part has the same pixels in the columns asked for, and fails where the whole one does.
TEST(Decode, WantedColumnsAreThoseOfTheWholeImage) {
  int in_part = 0;
  for (const auto& [name, expected] : golden_images().items()) {
    const std::string bytes = golden_file(name);
    Image whole;
    const auto failure = decode_image_into(whole, bytes);
    for (int left = 0; left < std::max(whole.width, 1); left += 7) {
      const auto wanted = [&](int width, int) {
        return PixelRange{std::min(left, width - 1), std::min(left + 9, width)};
      };
      Image part;
      const auto part_failure = decode_image_into(part, bytes, {}, wanted);
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
  }
  EXPECT_GT(in_part, 100);
}

TEST(Decode, FailsWherePillowDoes) {
  int failures = 0;
  for (const auto& [name, expected] : golden_images().items()) {
    if (!expected.contains("failure")) continue;
    EXPECT_EQ(expect_failure(golden_file(name)).reason, Reason::truncated_image) << name;
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
      EXPECT_EQ(expect_failure(std::string_view(bytes).substr(0, length)).reason, Reason::truncated_image)
          << name << " cut to " << length;
    }
  }
}

TEST(Decode, AnEarlyEndMarkerIsTruncation) {
  const std::string bytes = golden_file("baseline_420.jpg");
  EXPECT_EQ(expect_failure(bytes.substr(0, bytes.size() / 2) + "\xFF\xD9").reason, Reason::truncated_image);
}

TEST(Decode, NamesWhatIsNoImage) {
  using namespace std::string_literals;
  const std::pair<std::string, std::string> cases[] = {
      {"GIF89a\x01\0\x01\0"s, "GIF"},
      {"BM\x46\0\0\0"s, "BMP"},
      {"\0\0\0\x1C"
       "ftypavif\0\0\0\0"s,
       "AVIF"},
      {"  <!DOCTYPE HTML><html>", "HTML"},
      {"<?xml version=\"1.0\"?><svg/>", "SVG"},
      {"<svg xmlns=\"http://www.w3.org/2000/svg\"/>", "SVG"},
      {"", "no bytes"},
      {"hello", "unknown bytes: 68 65 6c 6c 6f"},
  };
  for (const auto& [bytes, kind] : cases) {
    const DecodeFailure failure = expect_failure(bytes);
    EXPECT_EQ(failure.reason, Reason::not_an_image) << kind;
    EXPECT_THAT(failure.detail, HasSubstr(kind));
  }
}

TEST(Decode, LimitsAreCheckedBeforePixels) {
  for (const std::string name : {"baseline_420.jpg", "rgb.png", "lossy.webp"}) {
    const std::string bytes = golden_file(name);
    EXPECT_EQ(expect_failure(bytes, {.max_pixels = 100}).reason, Reason::too_large) << name;
    EXPECT_EQ(expect_failure(bytes, {.max_side = 60}).reason, Reason::too_large) << name;
    EXPECT_EQ(expect_failure(bytes, {.min_side = 600}).reason, Reason::too_small) << name;
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
