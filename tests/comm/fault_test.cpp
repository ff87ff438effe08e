#include "millrace/comm/fault.h"

#include <gtest/gtest.h>

#include "core/temp_dir.h"
#include "millrace/core/files.h"
#include "mpi_world.h"

namespace millrace {
namespace {

// The file of this rank, which has had no fault so far.
std::filesystem::path begin_without_fault(const test::TempDir& folder) {
  fault::report_to({folder.path(), test_world().rank(), test_world().host(), "trainer"});
  fault::forget();
  return folder / fmt::format("fault/rank-{:05d}.json", test_world().rank());
}

TEST(Fault, WhoHasOnlyWaitedInVainIsNotNamed) {
  const test::TempDir folder;
  const auto file = begin_without_fault(folder);
  fault::write_own(Error(Exit::suspect_node, "MPI failed: the other rank is gone"));
  EXPECT_FALSE(std::filesystem::exists(file));
  fault::write_own(Error(Exit::io, "cannot read"));
  EXPECT_TRUE(std::filesystem::exists(file));
}

// As `faults` of slurm/outcome.sh reads them.
TEST(Fault, RankHostAndExitStandInThisOrder) {
  const test::TempDir folder;
  const auto file = begin_without_fault(folder);
  fault::write(Error(Exit::io, "cannot read"));
  const auto text = read_file(file);
  const auto host_at = text.find("\"host\": "), exit_at = text.find("\"exit\": 74");
  EXPECT_LT(text.find("\"rank\": "), host_at);
  EXPECT_LT(host_at, exit_at);
  EXPECT_NE(exit_at, std::string::npos);
}

}  // namespace
}  // namespace millrace
