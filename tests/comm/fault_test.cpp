#include "millrace/comm/fault.h"

#include <gtest/gtest.h>

#include "core/temp_dir.h"
#include "mpi_world.h"

namespace millrace {
namespace {

// The first of the faults of a process is kept, so that this is all one story.
TEST(Fault, WhoHasOnlyWaitedInVainIsNotNamed) {
  const test::TempDir folder;
  const auto file = folder / fmt::format("fault/rank-{:05d}.json", test_world().rank());
  fault::report_to({folder.path(), test_world().rank(), test_world().host(), "trainer"});
  fault::write_own(Error(Exit::suspect_node, "MPI failed: the other rank is gone"));
  EXPECT_FALSE(std::filesystem::exists(file));
  fault::write_own(Error(Exit::io, "cannot read"));
  EXPECT_TRUE(std::filesystem::exists(file));
}

}  // namespace
}  // namespace millrace
