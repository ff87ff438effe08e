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

TEST(World, SrunWithoutPmiIsRefused) {
  if (World::launched()) GTEST_SKIP() << "started by mpirun";
  setenv("SLURM_PROCID", "1", 1);
  setenv("SLURM_STEP_NUM_TASKS", "2", 1);
  try {
    World();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage);
  }
  unsetenv("SLURM_PROCID");
  unsetenv("SLURM_STEP_NUM_TASKS");
}

}  // namespace
}  // namespace millrace
