#include "millrace/parallel/outvoted.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(Outvoted, NobodyWhereAllAgree) {
  EXPECT_EQ(outvoted({"a"}), Outvoted{});
  EXPECT_EQ(outvoted({"a", "a", "a"}), Outvoted{});
}

TEST(Outvoted, TheOneAgainstTheOthers) {
  EXPECT_EQ(outvoted({"a", "b", "a"}), (Outvoted{{1}, true}));
  EXPECT_EQ(outvoted({"a", "b", "c", "a", "a"}), (Outvoted{{1, 2}, true}));
}

TEST(Outvoted, AllWhereNoMoreThanHalfAgree) {
  EXPECT_EQ(outvoted({"a", "b"}), (Outvoted{{0, 1}, false}));
  EXPECT_EQ(outvoted({"a", "a", "b", "c"}), (Outvoted{{0, 1, 2, 3}, false}));
}

TEST(Outvoted, OnlyThoseOfOneGroupAreCompared) {
  EXPECT_EQ(outvoted({"a", "b", "a", "b"}, 2), Outvoted{});
  EXPECT_EQ(outvoted({"a", "b", "a", "b", "a", "x"}, 2), (Outvoted{{5}, true}));
  EXPECT_EQ(outvoted({"a", "b", "x", "b"}, 2), (Outvoted{{0, 2}, false}));
  EXPECT_EQ(outvoted({"a", "b", "c"}, 3), Outvoted{});
}

TEST(Outvoted, OneDoubtMakesAllOfItDoubtful) {
  EXPECT_EQ(merge({{1, 4}, true}, {{1, 2}, true}), (Outvoted{{1, 2, 4}, true}));
  EXPECT_EQ(merge({{1}, true}, {{0, 2}, false}), (Outvoted{{0, 1, 2}, false}));
}

}  // namespace
}  // namespace millrace
