#include "millrace/train/samples.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(Samples, MayTakeAFiftiethOfTheTimeAndHalfAMinuteMore) {
  EXPECT_FALSE(exceed_share_of_samples(0, 0));
  EXPECT_FALSE(exceed_share_of_samples(29, 60)) << "a short run paints what it is asked for";
  EXPECT_TRUE(exceed_share_of_samples(35, 100));
  EXPECT_FALSE(exceed_share_of_samples(100, 3600)) << "102 s are allowed";
  EXPECT_TRUE(exceed_share_of_samples(103, 3600));
}

}  // namespace
}  // namespace millrace
