#include "millrace/train/samples.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(Samples, MayTakeAFiftiethOfTheTimeAndHalfAMinuteMore) {
  EXPECT_FALSE(exceed_share_of_samples(0, 0));
  EXPECT_FALSE(exceed_share_of_samples(290, 310)) << "a short run paints what it is asked for";
  EXPECT_TRUE(exceed_share_of_samples(310, 400));
  EXPECT_FALSE(exceed_share_of_samples(371, 3600)) << "372 s are allowed";
  EXPECT_TRUE(exceed_share_of_samples(373, 3600));
}

}  // namespace
}  // namespace millrace
