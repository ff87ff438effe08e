#include <gmock/gmock.h>

#include "dataset/temp_archives.h"
#include "millrace/loader/sources.h"
#include "train/shuffle_plan.h"

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
  plan.rows = {150 * kib, true};
  plan.hosts = {"a", "a", "b", "b"};
  plan.stripes_of_rank = {64, 64, 63, 0};
  plan.memory_of_rank = {64 * gib, 64 * gib, 64 * gib, 64 * gib};
  return plan;
}

TEST(ShufflePlan, TellsBlocksAndMemory) {
  ShufflePlan plan = some_plan();
  EXPECT_EQ(describe(plan), "blocks of 128 rows, about 1.2 GiB on each producer (64 stripes x 128 rows of 150 KiB)");
  plan.rows.is_measured = false;
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

DataPlan plan_of_archives(std::size_t archives) {
  DataPlan plan;
  plan.manifest.archives.resize(archives);
  plan.stripes.stripes = 64;
  return plan;
}

// 64 stripes x 128 rows are 8192.
TEST(ShufflePlan, ComplainsOfFewLongArchives) {
  ShufflePlan plan = some_plan();
  plan.rows.count = 1'000'000;
  const auto complaint = [&](std::size_t archives) {
    return complaint_about_mixing(plan, plan_of_archives(archives)).value_or("");
  };
  EXPECT_EQ(complaint(1),
            "1 archive of about 1.00M rows feeds 64 stripes, which mix 8192 of them at a time: where neighbours are "
            "alike, shuffle the rows beforehand");
  EXPECT_THAT(complaint(16), HasSubstr("16 archives of about 1.00M rows feed 64"));
  EXPECT_EQ(complaint(17), "") << "every batch is from many places";
  plan.rows.count = 4 * 8192 - 1;
  EXPECT_EQ(complaint(1), "");
  plan.rows.count = 0;
  EXPECT_EQ(complaint(1), "") << "nobody knows";
  plan.rows.count = 1'000'000;
  plan.block = 1;
  EXPECT_EQ(complaint(1), "") << "as the user wishes";
}

class RowSurveyTest : public testing::Test {
 protected:
  RowSurveyTest() {
    folder.write_tar("a.tar", {test::sample("0", std::string(3000, 'x'), "caption"),
                               {.key = "1", .fields = {{"txt", "no image"}}},
                               test::sample("2", std::string(1000, 'x'), "caption")});
    config.data.train.path = {folder.path("a.tar")};
    encoding.shape = {{8, 4, 4}, {77, 64}};
  }
  RowSurvey survey() const {
    return survey_rows(config, make_manifest(config.data.train, /*allow_pipes=*/true), encoding);
  }

  test::TempFolder folder;
  ProducerConfig config;
  EncodingPlan encoding;
};

TEST_F(RowSurveyTest, IsThatOfTheFirstRowsThatAreSamples) {
  EXPECT_EQ(survey().bytes, 2007u);
  EXPECT_TRUE(survey().is_measured);
}

TEST_F(RowSurveyTest, IsAGuessForAStream) {
  config.data.train.path = {"pipe:touch " + folder.path("begun")};
  EXPECT_EQ(survey().bytes, 100 * kib);
  EXPECT_FALSE(survey().is_measured);
  EXPECT_FALSE(fs::exists(folder.path("begun"))) << "it may be large, or not there a second time";
}

TEST_F(RowSurveyTest, IsTheEncodingsWhereACacheMayHoldIt) {
  constexpr std::uint64_t encoded = 2 * (8 * 4 * 4 + 77 * 64);
  encoding.cache = folder.path("cache");
  EXPECT_EQ(survey().bytes, encoded);
  encoding.cache.reset();
  encoding.encodes = false;
  EXPECT_EQ(survey_rows(config, {}, encoding).bytes, encoded);
}

TEST_F(RowSurveyTest, CountsTheRowsByTheBytesOfTheFirst) {
  std::vector<TarSample> samples;
  for (int i = 0; i < 200; ++i) samples.push_back(test::sample(std::to_string(i), std::string(3000, 'x'), "caption"));
  folder.write_tar("a.tar", samples);
  EXPECT_NEAR(static_cast<double>(survey().count), 200, 5);
  config.data.train.limit = 20;
  EXPECT_EQ(survey().count, 20u);
  config.data.train.filters = {{"status", "success"}};
  EXPECT_EQ(survey().count, 0u) << "of those that are left";

  std::string list = "url,caption\n";
  for (int i = 1000; i < 2000; ++i) list += fmt::format("{}.jpg,a caption\n", i);
  folder.write("list.csv", list);
  config.data.train = SourceConfig();
  config.data.train.type = SourceConfig::Type::csv;
  config.data.train.path = {folder.path("list.csv")};
  EXPECT_NEAR(static_cast<double>(survey().count), 1000, 5);
}

TEST_F(RowSurveyTest, TellsWhereNoneOfTheFirstRowsCanBeUsed) {
  EXPECT_EQ(survey().complaint, "");
  const std::string json = R"({"caption": "a mill"})";
  folder.write_tar("a.tar", {{.key = "0", .fields = {{"jpg", "x"}, {"json", json}}},
                             {.key = "1", .fields = {{"jpg", "x"}, {"json", json}}}});
  EXPECT_THAT(survey().complaint, AllOf(HasSubstr("none of the first 2 rows of " + folder.path("a.tar") +
                                                  " can be used: 2 missing_caption (no txt; it has jpg, json); "),
                                        HasSubstr("data.train.columns.caption"), HasSubstr("json.KEY")));
  EXPECT_FALSE(survey().is_measured);
  config.data.train.columns.caption = config::OneOrMore("json.caption");
  EXPECT_EQ(survey().complaint, "");
}

// Rows of dead addresses, which a filter is for, are nobody's mistake.
TEST_F(RowSurveyTest, FilteredRowsAreNoReasonToComplain) {
  folder.write_tar("a.tar", {{.key = "0", .fields = {{"json", R"({"status": "failed"})"}, {"txt", "a mill"}}}});
  EXPECT_THAT(survey().complaint, HasSubstr("missing_image"));
  config.data.train.filters = {{"status", "success"}};
  EXPECT_EQ(survey().complaint, "");
}

}  // namespace
}  // namespace millrace
