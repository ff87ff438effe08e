#include <gmock/gmock.h>

#include <cmath>

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

// One of every rank.
template <class T>
Facts<T> facts(const std::vector<T>& values) {
  Facts<T> facts;
  for (int rank = 0; const auto& value : values) facts.push_back({rank++, value});
  return facts;
}

// "rank: usual" of those that differ.
std::vector<std::string> odd(const std::vector<std::string>& values) {
  std::vector<std::string> texts;
  for (const auto& one : odd_ones(facts(values))) {
    EXPECT_EQ(one.own, values[one.rank]);
    texts.push_back(std::to_string(one.rank) + ": " + one.usual);
  }
  return texts;
}

std::vector<int> far(const Facts<double>& numbers) {
  std::vector<int> ranks;
  for (const auto& fact : far_from(numbers, usual_number(numbers).value(), 0.1)) ranks.push_back(fact.rank);
  return ranks;
}

std::vector<int> slow(const Facts<double>& rates) {
  std::vector<int> ranks;
  for (const auto& fact : far_below(rates, 0.5)) ranks.push_back(fact.rank);
  return ranks;
}

TEST(Numbers, AreUsualWhereMostAreNear) {
  const double nan = std::nan(""), inf = HUGE_VAL;
  EXPECT_THAT(far(facts<double>({2, 2.1, 1.9})), IsEmpty());
  EXPECT_THAT(far(facts<double>({-2, -2.1, -2.5})), ElementsAre(2));
  EXPECT_THAT(far(facts<double>({nan, 2, inf, 2})), ElementsAre(0, 2));
  EXPECT_THAT(far(facts<double>({0, 0, 1e-9})), ElementsAre(2));
  EXPECT_FALSE(usual_number(facts<double>({nan, inf})));
  EXPECT_FALSE(usual_number({}));
}

TEST(OddOnes, AreThoseThatDifferFromMost) {
  EXPECT_THAT(odd({"a", "a", "b", "a"}), ElementsAre("2: a"));
  EXPECT_THAT(odd({"b", "a", "a"}), ElementsAre("0: a"));
  EXPECT_THAT(odd({"a", "a"}), IsEmpty());
  EXPECT_THAT(odd({}), IsEmpty());
}

TEST(OddOnes, AreAllWhereNobodyKnows) {
  EXPECT_THAT(odd({"b", "a"}), ElementsAre("0: a", "1: b"));
  EXPECT_THAT(odd({"a", "b", "b", "c", "a"}), ElementsAre("0: b", "1: a", "2: a", "3: a", "4: b"));
}

TEST(Clocks, OneThatIsAheadIsNamed) {
  const auto suspects = judge_clocks(facts<double>({0, 0.1, 3.2, -0.2}), 2);
  EXPECT_THAT(ranks_of(suspects), ElementsAre(2));
  EXPECT_THAT(suspects[0].what, HasSubstr("3.2 s ahead"));
  EXPECT_THAT(judge_clocks(facts<double>({0, 1.9, -0.1}), 2), IsEmpty());
}

// All others seem wrong to it.
TEST(Clocks, ThatOfRankZeroMayBeTheWrongOne) {
  const auto suspects = judge_clocks(facts<double>({0, 5, 5.1, 4.9}), 2);
  EXPECT_THAT(ranks_of(suspects), ElementsAre(0));
  EXPECT_THAT(suspects[0].what, HasSubstr("behind"));
}

TEST(Sums, WhoHoldsAnotherIsNamed) {
  const auto suspects = judge_sums(facts<std::int64_t>({0, 0, 7, 0}));
  EXPECT_THAT(ranks_of(suspects), ElementsAre(2));
  EXPECT_THAT(suspects[0].what, HasSubstr("wrong in 7 elements"));
  EXPECT_THAT(judge_sums(facts<std::int64_t>({0, 0})), IsEmpty());
}

// One contribution was wrong, and all have added it.
TEST(Sums, NobodyIsNamedWhereAllAreWrong) {
  try {
    judge_sums(facts<std::int64_t>({5, 5, 5}));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::suspect_node);
    EXPECT_THAT(error.what(), HasSubstr("wrong on all of them"));
  }
}

TEST(FarBelow, IsLessThanAShareOfTheMedian) {
  EXPECT_THAT(slow(facts<double>({1, 1, 1, 0.4})), ElementsAre(3));
  EXPECT_THAT(slow(facts<double>({1, 1, 1, 0.6})), IsEmpty());
}

TEST(FarBelow, ComparesWithinARole) {
  const Roles roles{.trainers = {0, 1, 2}, .producers = {3, 4, 5, 6}};
  auto rates = by_role(facts<double>({10, 10, 4, 1, 1, 1, 0.4}), roles);
  EXPECT_THAT(slow(rates["trainer"]), ElementsAre(2));
  EXPECT_THAT(slow(rates["producer"]), ElementsAre(6));
}

TEST(FarBelow, NobodyJudgesTwo) {
  EXPECT_THAT(slow(facts<double>({10, 1})), IsEmpty());
}

TEST(Ring, NeighboursAreOnDifferentHosts) {
  const std::vector<std::string> hosts = {"a", "a", "b", "b", "c", "c"};
  const auto ring = ring_over_hosts(hosts);
  EXPECT_THAT(ring, ElementsAre(0, 2, 4, 1, 3, 5));
  for (std::size_t i = 0; i < ring.size(); ++i) EXPECT_NE(hosts[ring[i]], hosts[ring[(i + 1) % ring.size()]]);
}

// Round by round: who is free talks to the one whose turn it is with them, else both wait.
TEST(Meetings, BringAllNeighboursTogetherInThreeRounds) {
  for (int ranks = 2; ranks <= 9; ++ranks) {
    std::vector<std::size_t> next(ranks, 0);
    int pairs = 0, rounds = 0;
    for (bool met = true; met; rounds += met) {
      met = false;
      const auto before = next;
      for (int place = 0; place < ranks; ++place) {
        const auto own = meetings(place, ranks);
        if (before[place] == own.size()) continue;
        const auto [other, asks] = own[before[place]];
        const auto theirs = meetings(other, ranks);
        if (!asks || before[other] == theirs.size() || theirs[before[other]].place != place) continue;
        EXPECT_FALSE(theirs[before[other]].asks) << "who asks is answered";
        ++next[place], ++next[other], ++pairs;
        met = true;
      }
    }
    EXPECT_EQ(pairs, ranks == 2 ? 1 : ranks);
    EXPECT_EQ(rounds, ranks == 2 ? 1 : 2 + ranks % 2);
  }
  EXPECT_THAT(meetings(0, 1), IsEmpty());
}

}  // namespace
}  // namespace millrace::preflight
