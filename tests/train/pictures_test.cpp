#include "pictures.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(Pictures, MayTakeAFiftiethOfTheTimeAndFiveMinutesMore) {
  EXPECT_FALSE(exceeds_share_of_painting(0, 0));
  EXPECT_FALSE(exceeds_share_of_painting(290, 310)) << "a short run paints what it is asked for";
  EXPECT_TRUE(exceeds_share_of_painting(310, 400));
  EXPECT_FALSE(exceeds_share_of_painting(371, 3600)) << "372 s are allowed";
  EXPECT_TRUE(exceeds_share_of_painting(373, 3600));
}

}  // namespace
}  // namespace millrace
