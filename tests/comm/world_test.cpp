#include <gtest/gtest.h>

#include "millrace/comm/world.h"
#include "mpi_world.h"

namespace millrace {
namespace {

TEST(World, KnowsItsPlace) {
  const auto& world = test_world();
  EXPECT_LT(world.rank(), world.size());
  EXPECT_EQ(world.hosts().size(), static_cast<std::size_t>(world.size()));
  // The test runs on one machine.
  EXPECT_EQ(world.local_rank(), world.rank());
  EXPECT_FALSE(world.host().empty());
}

}  // namespace
}  // namespace millrace
