#include "millrace/dataset/sample.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(Sample, ItsRandomNumbersAreKeyedByRunIdAndEpoch) {
  const std::vector<SampleRef> refs = {{.id = "a/1", .hash = 7, .epoch = 3, .stripe = 1, .after = {}},
                                       {.id = "a/2", .hash = 8, .epoch = 4, .stripe = 2, .after = {}}};
  const auto keys = rng_keys(420, refs);
  ASSERT_EQ(keys.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(keys[i].seed, 420u);
    EXPECT_EQ(keys[i].sample, refs[i].hash);
    EXPECT_EQ(keys[i].epoch, refs[i].epoch);
  }
}

}  // namespace
}  // namespace millrace
