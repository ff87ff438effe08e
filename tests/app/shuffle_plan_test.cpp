#include <gmock/gmock.h>

#include "dataset/temp_archives.h"
#include "millrace/loader/sources.h"
#include "run/shuffle_plan.h"

namespace millrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::uint64_t kib = 1 << 10, gib = 1 << 30;

ShufflePlan some_plan() {
  ShufflePlan plan;
  plan.block = 128;
  plan.row = {150 * kib, true};
  plan.hosts = {"a", "a", "b", "b"};
  plan.stripes_of_rank = {64, 64, 63, 0};
  plan.memory_of_rank = {64 * gib, 64 * gib, 64 * gib, 64 * gib};
  return plan;
}

TEST(ShufflePlan, TellsBlocksAndMemory) {
  ShufflePlan plan = some_plan();
  EXPECT_EQ(describe(plan), "blocks of 128 rows, about 1.2 GiB on each producer (64 stripes x 128 rows of 150 KiB)");
  plan.row.is_measured = false;
  EXPECT_THAT(describe(plan), HasSubstr("150 KiB, a guess)"));
  plan.block = 1;
  EXPECT_THAT(describe(plan), HasSubstr("not at all"));
}

// 1.17 GiB a rank, so 2.34 GiB on a and 1.15 GiB on b.
TEST(ShufflePlan, WarnsOfMoreThanAQuarterOfANode) {
  ShufflePlan plan = some_plan();
  EXPECT_THAT(memory_warnings(plan), IsEmpty());
  plan.memory_of_rank = {9 * gib, 9 * gib, 5 * gib, 5 * gib};
  EXPECT_THAT(memory_warnings(plan), ElementsAre(AllOf(HasSubstr("data.shuffle_block = 128"), HasSubstr("2.3 GiB on a"),
                                                       HasSubstr("a quarter of its 9.0 GiB"))));
  plan.memory_of_rank[2] = plan.memory_of_rank[3] = 4 * gib;
  EXPECT_EQ(memory_warnings(plan).size(), 2u);
}

class RowSizeTest : public testing::Test {
 protected:
  RowSizeTest() {
    folder.write_tar("a.tar", {test::sample("0", std::string(3000, 'x'), "caption"),
                               {.key = "1", .fields = {{"txt", "no image"}}},
                               test::sample("2", std::string(1000, 'x'), "caption")});
    config.data.train.path = {folder.path("a.tar")};
    encoding.shape = {{8, 4, 4}, {77, 64}};
  }
  RowSize measure() const {
    return measure_row(config, make_manifest(config.data.train, /*allow_pipes=*/true), encoding);
  }

  test::TempFolder folder;
  ProducerConfig config;
  EncodingPlan encoding;
};

TEST_F(RowSizeTest, IsThatOfTheFirstRowsThatAreSamples) {
  EXPECT_EQ(measure().bytes, 2007u);
  EXPECT_TRUE(measure().is_measured);
}

TEST_F(RowSizeTest, IsAGuessForAStream) {
  config.data.train.path = {"pipe:touch " + folder.path("begun")};
  EXPECT_EQ(measure().bytes, 100 * kib);
  EXPECT_FALSE(measure().is_measured);
  EXPECT_FALSE(fs::exists(folder.path("begun"))) << "it may be large, or not there a second time";
}

TEST_F(RowSizeTest, IsTheEncodingsWhereACacheMayHoldIt) {
  constexpr std::uint64_t encoded = 2 * (8 * 4 * 4 + 77 * 64);
  encoding.cache = folder.path("cache");
  EXPECT_EQ(measure().bytes, encoded);
  encoding.cache.reset();
  encoding.encodes = false;
  EXPECT_EQ(measure_row(config, {}, encoding).bytes, encoded);
}

}  // namespace
}  // namespace millrace
