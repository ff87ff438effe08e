#include "first_sample_guard.h"

#include <gmock/gmock.h>

#include "millrace/core/error.h"

namespace millrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class FirstSampleGuardTest : public testing::Test {
 protected:
  static StripePlan plan(std::uint32_t archives) {
    StripePlan plan;
    for (std::uint32_t i = 0; i < archives; ++i)
      for (const std::uint32_t index : {0, 1}) plan.splits.push_back({i, index, 2});
    return plan;
  }
  static Rejected row(std::uint32_t archive, RejectReason reason) {
    Rejected row{{}, reason, "no txt"};
    row.ref.id = fmt::format("{}/7", archive);
    row.ref.archive = archive;
    return row;
  }
  static void count(FirstSampleGuard& guard, std::uint32_t archives, int rows,
                    RejectReason reason = RejectReason::missing_caption) {
    for (std::uint32_t i = 0; i < archives; ++i)
      for (int n = 0; n < rows; ++n) guard.count_rejected(row(i, reason));
  }
  static std::string told(const FirstSampleGuard& guard) {
    try {
      guard.judge(nullptr, "data.train");
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::bad_data);
      return fmt::format("{} [{}]", error.what(), error.hint());
    }
    return "";
  }
};

// 0.2^13 is less than 1e-9, 0.2^12 is not.
TEST_F(FirstSampleGuardTest, TellsOfManyBadRowsOfManyArchives) {
  FirstSampleGuard few(plan(30), 0.2), many(plan(30), 0.2), tolerant(plan(30), 0.5);
  count(few, 12, 1'000);
  EXPECT_EQ(told(few), "");
  count(many, 13, 700);
  EXPECT_EQ(told(many), "") << "9100 rows";
  count(many, 13, 100);
  EXPECT_EQ(told(many),
            "data.train: none of the first 10400 rows, from 13 archives, can be used: 10400 missing_caption; the first "
            "is 0/7: no txt [captions are taken from txt of tars, else from caption, TEXT, text or txt: set "
            "data.train.columns.caption to another name, of tars also json.KEY]");
  count(tolerant, 29, 1'000);
  EXPECT_EQ(told(tolerant), "");
  count(tolerant, 30, 10);
  EXPECT_THAT(told(tolerant), HasSubstr("from 30 archives"));
}

TEST_F(FirstSampleGuardTest, OfFewArchivesAllMustBeBad) {
  FirstSampleGuard guard(plan(3), 0.2);
  count(guard, 2, 10'000);
  EXPECT_EQ(told(guard), "");
  for (int n = 0; n < 9; ++n) guard.count_rejected(row(2, RejectReason::not_an_image));
  EXPECT_EQ(told(guard), "") << "it has only just begun";
  guard.count_rejected(row(2, RejectReason::not_an_image));
  EXPECT_THAT(told(guard), AllOf(HasSubstr("from 3 archives"), HasSubstr("20000 missing_caption, 10 not_an_image")));
}

// 13 archives of ten rows would do.
TEST_F(FirstSampleGuardTest, SmallArchivesAreToldOfTogether) {
  FirstSampleGuard guard(plan(5'000), 0.2);
  count(guard, 4'999, 2);
  EXPECT_EQ(told(guard), "") << "9998 rows";
  count(guard, 5'000, 1);
  EXPECT_THAT(told(guard), HasSubstr("from 5000 archives"));
}

TEST_F(FirstSampleGuardTest, RowsThatWaitForAThreadMayBeSamples) {
  FirstSampleGuard guard(plan(1), 0.2);
  count(guard, 1, 20'000);
  for (int n = 0; n < 20'000; ++n) guard.count_undecided(0);
  EXPECT_EQ(told(guard), "");
  guard.reject_undecided(row(0, RejectReason::decode_error));
  EXPECT_THAT(told(guard), HasSubstr("20000 missing_caption, 1 decode_error"));
}

// Some always do, where rows are bad because of what threads find in them.
TEST_F(FirstSampleGuardTest, AFewRowsThatWaitChangeNothing) {
  FirstSampleGuard guard(plan(13), 0.2);
  for (std::uint32_t archive = 0; archive < 13; ++archive) {
    for (int n = 0; n < 1'000; ++n) guard.count_undecided(archive);
    for (int n = 0; n < 800; ++n) guard.reject_undecided(row(archive, RejectReason::not_an_image));
  }
  EXPECT_THAT(told(guard), HasSubstr("10400 not_an_image"));
}

TEST_F(FirstSampleGuardTest, ASampleIsEnough) {
  FirstSampleGuard guard(plan(1), 0.2);
  count(guard, 1, 20'000);
  EXPECT_NE(told(guard), "");
  guard.found_sample();
  EXPECT_EQ(told(guard), "");
  count(guard, 1, 20'000);
  EXPECT_EQ(told(guard), "");
}

// Filters may keep one row of many thousands.
TEST_F(FirstSampleGuardTest, FilteredRowsAreNotBad) {
  FirstSampleGuard guard(plan(20), 0.2);
  count(guard, 20, 5'000, RejectReason::filtered);
  EXPECT_EQ(told(guard), "");
  count(guard, 20, 1'000);
  EXPECT_EQ(told(guard), "") << "a sixth of all";
  count(guard, 20, 1'000);
  EXPECT_THAT(told(guard), HasSubstr("100000 filtered, 40000 missing_caption"));
}

TEST_F(FirstSampleGuardTest, WhereNoRowMayBeBadOneArchiveIsEnough) {
  FirstSampleGuard guard(plan(30), 0);
  count(guard, 1, 9'999);
  EXPECT_EQ(told(guard), "");
  count(guard, 1, 1);
  EXPECT_THAT(told(guard), HasSubstr("from 1 archives"));
}

TEST_F(FirstSampleGuardTest, NothingIsJudgedWhereAllMayBeBad) {
  FirstSampleGuard guard(plan(1), 1);
  count(guard, 1, 20'000);
  EXPECT_EQ(told(guard), "");
}

}  // namespace
}  // namespace millrace
