#include <gmock/gmock.h>

#include "preflight/ranks.h"

namespace millrace::preflight {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<int> ranks_of(const std::vector<Suspicion>& suspects) {
  std::vector<int> ranks;
  for (const auto& suspect : suspects) ranks.push_back(suspect.rank);
  return ranks;
}

TEST(OddOnes, AreThoseThatDifferFromMost) {
  std::string usual;
  EXPECT_THAT(odd_ones({"a", "a", "b", "a"}, usual), ElementsAre(2));
  EXPECT_EQ(usual, "a");
  EXPECT_THAT(odd_ones({"b", "a", "a"}, usual), ElementsAre(0));
  EXPECT_THAT(odd_ones({"a", "a"}, usual), IsEmpty());
}

TEST(OddOnes, RankZeroIsRightWhereNobodyKnows) {
  std::string usual;
  EXPECT_THAT(odd_ones({"b", "a"}, usual), ElementsAre(1));
  EXPECT_THAT(odd_ones({"c", "b", "a"}, usual), ElementsAre(1, 2));
}

TEST(Clocks, OneThatIsAheadIsNamed) {
  const auto suspects = judge_clocks({0, 0.1, 3.2, -0.2}, 2);
  EXPECT_THAT(ranks_of(suspects), ElementsAre(2));
  EXPECT_THAT(suspects[0].what, HasSubstr("3.2 s ahead"));
  EXPECT_THAT(judge_clocks({0, 1.9, -0.1}, 2), IsEmpty());
}

// All others seem wrong to it.
TEST(Clocks, ThatOfRankZeroMayBeTheWrongOne) {
  const auto suspects = judge_clocks({0, 5, 5.1, 4.9}, 2);
  EXPECT_THAT(ranks_of(suspects), ElementsAre(0));
  EXPECT_THAT(suspects[0].what, HasSubstr("behind"));
}

TEST(FarBelow, ComparesWithinAKind) {
  const std::vector<std::string> kinds = {"t", "t", "t", "p", "p", "p", "p"};
  EXPECT_THAT(far_below({10, 10, 4, 1, 1, 1, 0.4}, kinds, 0.5), ElementsAre(2, 6));
  EXPECT_THAT(far_below({10, 10, 6, 1, 1, 1, 0.6}, kinds, 0.5), IsEmpty());
}

TEST(FarBelow, NobodyJudgesTwo) {
  EXPECT_THAT(far_below({10, 1}, {"t", "t"}, 0.5), IsEmpty());
}

TEST(SharedGpus, AreNamedWithTheirFirstUser) {
  const auto shared = shared_gpus({"a", "b", "a", "", ""}, {"n0", "n0", "n0", "n1", "n1"});
  ASSERT_EQ(shared.size(), 1u);
  EXPECT_EQ(shared[0].rank, 2);
  EXPECT_EQ(shared[0].first, 0);
  EXPECT_EQ(shared[0].host, "n0");
}

TEST(Ring, NeighboursAreOnDifferentHosts) {
  const std::vector<std::string> hosts = {"a", "a", "b", "b", "c", "c"};
  const auto ring = ring_over_hosts(hosts);
  EXPECT_THAT(ring, ElementsAre(0, 2, 4, 1, 3, 5));
  for (std::size_t i = 0; i < ring.size(); ++i) EXPECT_NE(hosts[ring[i]], hosts[ring[(i + 1) % ring.size()]]);
}

TEST(Partners, AreOnAnotherHostWhereThereIsOne) {
  EXPECT_THAT(partners({"a", "a", "b"}), ElementsAre(2, 2, 0));
  EXPECT_THAT(partners({"a", "a", "a"}), ElementsAre(1, 2, 0));
  EXPECT_THAT(partners({"a"}), ElementsAre(0));
}

}  // namespace
}  // namespace millrace::preflight
