#include "millrace/data/turns.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

std::vector<std::uint32_t> take(StripeTurns& turns, int samples) {
  std::vector<std::uint32_t> taken;
  for (int i = 0; i < samples; ++i) taken.push_back(turns.next());
  return taken;
}

using Stripes = std::vector<std::uint32_t>;

TEST(StripeTurns, WholeParcelsInTurn) {
  StripeTurns turns({4, 1, 7}, 2);
  EXPECT_EQ(take(turns, 9), (Stripes{1, 1, 4, 4, 7, 7, 1, 1, 4}));
}

TEST(StripeTurns, ADroppedSampleIsMadeUpFor) {
  StripeTurns turns({0, 1}, 2);
  EXPECT_EQ(take(turns, 3), (Stripes{0, 0, 1}));
  turns.put_back(0);
  EXPECT_EQ(take(turns, 3), (Stripes{0, 1, 0}));
}

TEST(StripeTurns, AStripeThatEndedIsLeftOut) {
  StripeTurns turns({0, 1}, 3);
  EXPECT_EQ(turns.next(), 0u);
  turns.remove(0);
  EXPECT_EQ(take(turns, 4), (Stripes{1, 1, 1, 1}));
  turns.remove(1);
  EXPECT_TRUE(turns.empty());
}

}  // namespace
}  // namespace millrace
