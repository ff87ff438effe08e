#include <gtest/gtest.h>

#include "image.h"
#include "image/golden_images.h"
#include "millrace/core/files.h"
#include "millrace/image/decode.h"

namespace millrace {
namespace {

using Resize = DownloadConfig::Resize;

std::string golden(const std::string& name) {
  return read_file(fs::path(MILLRACE_TEST_DATA) / "transform" / name);
}

std::string message(const std::variant<StoredImage, Failure>& result) {
  const auto* const failure = std::get_if<Failure>(&result);
  return failure ? failure->message() : "success";
}

DownloadConfig resizing(Resize resize, int size) {
  DownloadConfig config;
  config.resize = resize;
  config.image_size = size;
  return config;
}

TEST(DownloadedImage, BytesStayAsTheyCame) {
  for (const auto& [name, type] :
       {std::pair("oriented.jpg", "jpg"), std::pair("rgb.png", "png"), std::pair("lossy.webp", "webp")}) {
    const std::string body = golden(name);
    const auto result = prepare_image(body, "", {});
    ASSERT_EQ(message(result), "success") << name;
    const auto& image = std::get<StoredImage>(result);
    EXPECT_EQ(image.bytes, body);
    EXPECT_EQ(image.type, type);
    EXPECT_EQ(image.width, std::get<Image>(decode_image(body)).width);
    EXPECT_EQ(image.original_height, image.height);
  }
}

// In the words of ExifRead 3, which img2dataset writes. Where nothing is resized the bytes have it themselves.
TEST(DownloadedImage, OrientationIsNotedWhereItIsLost) {
  const std::map<std::string, std::string> words = {{"oriented_1.jpg", ""},
                                                    {"oriented_2.jpg", "Mirrored horizontal"},
                                                    {"oriented_3.jpg", "Rotated 180"},
                                                    {"oriented_4.jpg", "Mirrored vertical"},
                                                    {"oriented_5.jpg", "Mirrored horizontal then rotated 90 CCW"},
                                                    {"oriented_6.jpg", "Rotated 90 CW"},
                                                    {"oriented_7.jpg", "Mirrored horizontal then rotated 90 CW"},
                                                    {"oriented_8.jpg", "Rotated 90 CCW"},
                                                    {"rgb.png", ""}};
  for (const auto& [name, word] : words) {
    const auto resized = prepare_image(golden(name), "", resizing(Resize::keep, 16));
    ASSERT_EQ(message(resized), "success") << name;
    const std::string expected = word.empty() ? "" : "{\"Image Orientation\": \"" + word + "\"}";
    EXPECT_EQ(std::get<StoredImage>(resized).exif, expected) << name;
    EXPECT_EQ(std::get<StoredImage>(prepare_image(golden(name), "", {})).exif, "") << name;
  }
}

// Digests of "abc" by md5sum, sha256sum, sha512sum; "abc" is no image, so a right digest leads to the next complaint.
TEST(DownloadedImage, DigestsAreToldByTheirLength) {
  const std::string md5 = "900150983cd24fb0d6963f7d28e17f72";
  const std::string sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  const std::string sha512 =
      "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e"
      "2a9ac94fa54ca49f";
  for (std::string hash : {md5, sha256, sha512}) {
    EXPECT_EQ(message(prepare_image("abc", hash, {})), "not an image");
    EXPECT_EQ(message(prepare_image("abd", hash, {})), "hash: mismatch");
    for (char& c : hash) c = static_cast<char>(std::toupper(c));
    EXPECT_EQ(message(prepare_image("abc", hash, {})), "not an image");
  }
  for (const char* odd : {"12", "-4981273", "900150983cd24fb0d6963f7d28e17f7"})
    EXPECT_NE(message(prepare_image("abc", odd, {})), "not an image") << odd;
}

TEST(DownloadedImage, FirstBytesDecideWhatItIs) {
  EXPECT_EQ(message(prepare_image("<!doctype html><html>", "", {})), "not an image: an HTML page");
  EXPECT_EQ(message(prepare_image("GIF89a", "", {})), "not an image: a GIF image");
  EXPECT_EQ(message(prepare_image("", "", {})), "not an image: no bytes");
  const std::string whole = golden("oriented.jpg");
  EXPECT_EQ(message(prepare_image(whole.substr(0, whole.size() / 2), "", {})), "broken image: truncated_image");
}

Image decode_as_downloaded(const std::string& body) {
  Image image;
  EXPECT_FALSE(decode_image_into(image, body, {}, {.on_white = true}));
  return image;
}

// Pixels before the JPEG and after it.
TEST(DownloadedImage, EqualsImg2dataset) {
  const fs::path goldens = fs::path(MILLRACE_TEST_DATA) / "download_images";
  const auto expected = nlohmann::json::parse(read_file(goldens / "expected.json"));
  const std::map<std::string, Resize> modes = {
      {"keep", Resize::keep}, {"center_crop", Resize::center_crop}, {"border", Resize::border}};
  for (const auto& wanted : expected["cases"]) {
    const std::string body = read_file(goldens / wanted["file"].get<std::string>());
    const Resize mode = modes.at(wanted["resize"]);
    const int size = wanted["image_size"];
    const auto resized = resize_to_store(decode_as_downloaded(body), mode, size);
    ASSERT_TRUE(resized.has_value()) << wanted;
    EXPECT_EQ(resized->width, wanted["width"]) << wanted;
    EXPECT_EQ(resized->height, wanted["height"]) << wanted;
    EXPECT_EQ(sha256(*resized), wanted["pixels"].get<std::string>()) << wanted;
    DownloadConfig config = resizing(mode, size);
    config.quality = wanted["quality"].get<int>();
    const auto result = prepare_image(body, "", config);
    ASSERT_EQ(message(result), "success") << wanted;
    const auto& stored = std::get<StoredImage>(result);
    EXPECT_EQ(stored.width, wanted["width"]) << wanted;
    EXPECT_EQ(sha256(std::get<Image>(decode_image(stored.bytes))), wanted["stored"].get<std::string>()) << wanted;
  }
  EXPECT_GE(expected["cases"].size(), 80u);
}

TEST(DownloadedImage, NothingLongerThanAJpegIsMade) {
  const Image strip{300, 1, Pixels(300 * 3)};
  EXPECT_EQ(resize_to_store(strip, Resize::keep, 218)->width, 65400);
  for (const Resize mode : {Resize::keep, Resize::center_crop}) EXPECT_FALSE(resize_to_store(strip, mode, 219));
  EXPECT_EQ(resize_to_store(strip, Resize::border, 219)->height, 219);
}

TEST(DownloadedImage, ResizesAsAsked) {
  const std::string body = golden("wide.jpg");
  const Image original = std::get<Image>(decode_image(body));
  ASSERT_GT(original.width, original.height);
  struct {
    Resize resize;
    int width, height;
  } const cases[] = {{Resize::keep, (original.width * 64 + original.height / 2) / original.height, 64},
                     {Resize::center_crop, 64, 64},
                     {Resize::border, 64, 64}};
  for (const auto& c : cases) {
    const auto result = prepare_image(body, "", resizing(c.resize, 64));
    ASSERT_EQ(message(result), "success");
    const auto& image = std::get<StoredImage>(result);
    EXPECT_EQ(image.type, "jpg");
    EXPECT_EQ(image.width, c.width);
    EXPECT_EQ(image.height, c.height);
    EXPECT_EQ(image.original_width, original.width);
    const Image decoded = std::get<Image>(decode_image(image.bytes));
    EXPECT_EQ(decoded.width, c.width);
    EXPECT_EQ(decoded.height, c.height);
    const bool bordered = decoded.pixels[0] > 245 && decoded.pixels[1] > 245;  // white above a wide image
    EXPECT_TRUE(bordered || c.resize != Resize::border);
  }
}

TEST(DownloadedImage, FailuresAreReadBackFromTheirWords) {
  for (int kind = 0; kind < failure_kind_count; ++kind) {
    for (const char* detail : {"", "429", "of this: that"}) {
      const Failure failure{static_cast<FailureKind>(kind), detail};
      const Failure read = Failure::from_message(failure.message());
      EXPECT_EQ(read.kind, failure.kind);
      EXPECT_EQ(read.detail, failure.detail);
    }
  }
  for (const char* status : {"408", "429", "500", "503", "504"})
    EXPECT_TRUE(is_retryable({FailureKind::http, status})) << status;
  for (const char* status : {"400", "403", "404", "410", "451"})
    EXPECT_FALSE(is_retryable({FailureKind::http, status})) << status;
  EXPECT_FALSE(is_retryable(Failure::from_message("HTTP Error 500")));
  EXPECT_EQ(http_status(Failure::from_message("http status: 404")), 404);
  EXPECT_EQ(http_status({FailureKind::hash, "404"}), 0);
}

}  // namespace
}  // namespace millrace
