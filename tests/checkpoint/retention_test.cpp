#include "retention.h"

#include <gmock/gmock.h>

#include "core/temp_dir.h"
#include "millrace/checkpoint/reader.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;

// Folders alone: what is in them is nothing to retention.
class Retention : public ::testing::Test {
 protected:
  void make(std::initializer_list<int> steps) const {
    for (const int step : steps) std::filesystem::create_directories(path(step));
  }
  std::filesystem::path path(int step) const { return folder_.path() / "checkpoints" / step_name(step); }
  std::vector<std::int64_t> left(std::int64_t newest, int keep, const std::set<std::int64_t>& unread = {}) const {
    delete_old(folder_.path(), newest, keep, unread);
    std::vector<std::int64_t> steps;
    for (const auto& checkpoint : list_checkpoints(folder_.path())) steps.push_back(checkpoint.step);
    return steps;
  }

 private:
  test::TempDir folder_;
};

TEST_F(Retention, KeepsTheNewestAndWhatIsMarked) {
  make({1, 2, 3, 4});
  keep_for_good(path(1));
  EXPECT_THAT(left(4, 2), ElementsAre(4, 3, 1));
}

TEST_F(Retention, WhatIsNewerThanTheRunCountsForNothing) {
  make({1, 2, 3, 9});
  EXPECT_THAT(left(3, 2), ElementsAre(9, 3, 2));
}

TEST_F(Retention, WhatNobodyCouldReadCountsForNothingAndGoesWithItsTime) {
  make({1, 2, 3, 4, 5, 6});
  EXPECT_THAT(left(6, 2, {2, 4, 5}), ElementsAre(6, 5, 4, 3));
  make({7});
  EXPECT_THAT(left(7, 2, {2, 4, 5}), ElementsAre(7, 6));
}

}  // namespace
}  // namespace millrace
