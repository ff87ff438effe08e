#include <gtest/gtest.h>

#include "millrace/comm/world.h"
#include "mpi_world.h"

namespace millrace {
namespace {

// The ranks are on two nodes in turn: two_nodes.cpp.
TEST(World, KnowsItsPlace) {
  const auto& world = test_world();
  EXPECT_LT(world.rank(), world.size());
  EXPECT_EQ(world.hosts().size(), static_cast<std::size_t>(world.size()));
  EXPECT_EQ(world.host(), world.rank() % 2 == 0 ? "node-0" : "node-1");
  EXPECT_EQ(world.local_rank(), world.rank() / 2);
}

}  // namespace
}  // namespace millrace
