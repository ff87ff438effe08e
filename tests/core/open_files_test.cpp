#include "millrace/core/open_files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>

namespace millrace {
namespace {

// Ends this process, since nobody gets back what a hard limit was: with 0 when the soft one is `after` then.
[[noreturn]] void try_limits(const rlimit& before, std::size_t wanted, rlim_t after) {
  ::setrlimit(RLIMIT_NOFILE, &before);
  allow_open_files(wanted);
  rlimit now{};
  ::getrlimit(RLIMIT_NOFILE, &now);
  std::exit(now.rlim_cur == after ? 0 : 1);
}

TEST(OpenFiles, AreAllowedWith256OthersAsFarAsTheyMayBe) {
  rlimit here{};
  ::getrlimit(RLIMIT_NOFILE, &here);
  if (here.rlim_max < 1000) GTEST_SKIP() << "no more than " << here.rlim_max << " files may be open here";
  EXPECT_EXIT(try_limits({64, 1000}, 200, 456), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(try_limits({64, 100}, 200, 100), testing::ExitedWithCode(0), "") << "no more may be had";
  EXPECT_EXIT(try_limits({500, 1000}, 200, 500), testing::ExitedWithCode(0), "") << "more is allowed already";
}

}  // namespace
}  // namespace millrace
