#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>

#include "millrace/comm/world.h"
#include "mpi_world.h"

namespace millrace {
namespace {

// Before there is a world, which raises it.
const bool limit_is_low = [] {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_cur, 200);
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}();

// The ranks are on two nodes in turn: two_nodes.cpp.
TEST(World, KnowsItsPlace) {
  const auto& world = test_world();
  EXPECT_LT(world.rank(), world.size());
  EXPECT_EQ(world.hosts().size(), static_cast<std::size_t>(world.size()));
  EXPECT_EQ(world.host(), world.rank() % 2 == 0 ? "node-0" : "node-1");
  EXPECT_EQ(world.local_rank(), world.rank() / 2);
}

// Four to each, beside 256 other files.
TEST(World, AllowsSocketsToAllRanks) {
  ASSERT_TRUE(limit_is_low);
  if (!World::launched()) GTEST_SKIP() << "needs mpirun";
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_GE(limit.rlim_cur, std::min<rlim_t>(limit.rlim_max, 256 + 4 * static_cast<rlim_t>(test_world().size())));
}

}  // namespace
}  // namespace millrace
