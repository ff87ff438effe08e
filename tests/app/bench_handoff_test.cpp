#include <gtest/gtest.h>

#include "bench/bench_handoff.h"
#include "mpi_world.h"

namespace millrace {
namespace {

TEST(BenchHandoff, GivesOneFigurePerRunOnEveryRank) {
  const HandoffBench bench{.parcel_bytes = 100000, .parcels = 20, .runs = 3, .slots = 4};
  const auto figures = bench_handoff(test_world().group(), bench);
  ASSERT_EQ(figures.size(), 3u);
  for (const double figure : figures) EXPECT_GT(figure, 1e6);
}

}  // namespace
}  // namespace millrace
