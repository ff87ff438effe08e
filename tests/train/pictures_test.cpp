#include "pictures.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(Pictures, MayTakeAFiftiethOfTheTimeAndFiveMinutesMore) {
  const PaintingLimit limit;
  EXPECT_FALSE(limit.is_exceeded(0, 0));
  EXPECT_FALSE(limit.is_exceeded(290, 310)) << "a short run paints what it is asked for";
  EXPECT_TRUE(limit.is_exceeded(310, 400));
  EXPECT_FALSE(limit.is_exceeded(371, 3600)) << "372 s are allowed";
  EXPECT_TRUE(limit.is_exceeded(373, 3600));
}

}  // namespace
}  // namespace millrace
