#include "millrace/comm/fault.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "core/temp_dir.h"
#include "millrace/comm/agree.h"
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

// What all ranks agree on names no host; the rank whose node it is does so before.
TEST(Fault, OfThisNodeIsWrittenBeforeAllAgreeOnIt) {
  const test::TempDir folder;
  const auto file = begin_without_fault(folder);
  const auto fail_here = [] { on_all(Group(), [] { throw Error(Exit::suspect_node, "no answer"); }); };
  EXPECT_THROW(fail_here(), AgreedError);
  EXPECT_FALSE(std::filesystem::exists(file)) << "it waited in vain";
  EXPECT_EXIT(
      {
        fault::blame_this_rank();
        try {
          fail_here();
        } catch (const AgreedError&) {
          std::_Exit(read_file(file).find("no answer") != std::string::npos ? 0 : 1);
        }
      },
      testing::ExitedWithCode(0), "");
}

struct ThrowsWhileItUnwinds {
  ~ThrowsWhileItUnwinds() { fail(Exit::io, "the GPU has fallen off the bus"); }  // noexcept: std::terminate
};

TEST(Fault, OfADestructorIsTold) {
  const test::TempDir folder;
  const auto file = begin_without_fault(folder);
  const auto unwind = [] {
    fault::tell_at_terminate();
    const ThrowsWhileItUnwinds last;
    fail(Exit::bug, "the first error");
  };
  EXPECT_EXIT(unwind(), testing::ExitedWithCode(74), "rank .*: the GPU has fallen off the bus");
  EXPECT_NE(read_file(file).find("off the bus"), std::string::npos);
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
