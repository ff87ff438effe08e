#include "outvoted.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

using Trainers = std::vector<int>;

TEST(Outvoted, NobodyWhereAllAgree) {
  EXPECT_EQ(outvoted({"a"}), Trainers{});
  EXPECT_EQ(outvoted({"a", "a", "a"}), Trainers{});
}

TEST(Outvoted, TheOneAgainstTheOthers) {
  EXPECT_EQ(outvoted({"a", "b", "a"}), Trainers{1});
  EXPECT_EQ(outvoted({"a", "b", "c", "a", "a"}), (Trainers{1, 2}));
}

TEST(Outvoted, AllWhereNoMoreThanHalfAgree) {
  EXPECT_EQ(outvoted({"a", "b"}), (Trainers{0, 1}));
  EXPECT_EQ(outvoted({"a", "a", "b", "c"}), (Trainers{0, 1, 2, 3}));
}

TEST(Outvoted, OnlyThoseOfOneGroupAreCompared) {
  EXPECT_EQ(outvoted({"a", "b", "a", "b"}, 2), Trainers{});
  EXPECT_EQ(outvoted({"a", "b", "a", "b", "a", "x"}, 2), Trainers{5});
  EXPECT_EQ(outvoted({"a", "b", "x", "b"}, 2), (Trainers{0, 2}));
  EXPECT_EQ(outvoted({"a", "b", "c"}, 3), Trainers{});
}

}  // namespace
}  // namespace millrace
