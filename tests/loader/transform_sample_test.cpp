#include "millrace/loader/transform_sample.h"

#include <gtest/gtest.h>

#include <map>

#include "millrace/core/hash.h"
#include "millrace/image/encode_jpeg.h"

namespace millrace {
namespace {

// The caption with which an image of three is trained at a visit.
std::string caption_at(const std::string& id, std::uint32_t epoch, bool one_caption = false) {
  TransformPipeline transforms;
  transforms.seed = 7;
  transforms.transform.resolution = 8;
  transforms.one_caption = one_caption;
  RawSample sample;
  sample.ref.id = id;
  sample.ref.hash = hash64(id);
  sample.ref.epoch = epoch;
  Image image{8, 8, {}};
  image.pixels.resize(3 * 8 * 8);
  sample.image = encode_jpeg(image, 90);
  sample.caption = "first";
  sample.more_captions = {"second", "third"};
  TransformSeconds spent;
  auto outcome = transform_sample(std::move(sample), transforms, spent);
  return std::get<TransformedSample>(outcome).caption;
}

TEST(Captions, EachVisitTakesOneByChance) {
  std::map<std::string, int> drawn;
  for (std::uint32_t epoch = 0; epoch < 600; ++epoch) ++drawn[caption_at("a/0", epoch)];
  ASSERT_EQ(drawn.size(), 3u);
  for (const auto& [caption, times] : drawn) EXPECT_NEAR(times, 200, 60) << caption;
  for (std::uint32_t epoch = 0; epoch < 20; ++epoch) EXPECT_EQ(caption_at("a/0", epoch), caption_at("a/0", epoch));
  std::map<std::string, int> of_others;
  for (int i = 0; i < 600; ++i) ++of_others[caption_at("a/" + std::to_string(i), 0)];
  for (const auto& [caption, times] : of_others) EXPECT_NEAR(times, 200, 60) << caption;
}

// What a cache holds is of one of them.
TEST(Captions, ACacheHasTheFirstVisitsForGood) {
  for (int i = 0; i < 20; ++i) {
    const auto id = "a/" + std::to_string(i);
    for (std::uint32_t epoch = 0; epoch < 5; ++epoch)
      EXPECT_EQ(caption_at(id, epoch, /*one_caption=*/true), caption_at(id, 0)) << id;
  }
}

}  // namespace
}  // namespace millrace
