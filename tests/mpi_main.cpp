// GoogleTest's main for programs that run as several ranks. Rank 0 prints the usual lines, every rank its failures with
// its number; the first rank whose test fails ends all, because the others may wait for it. Tests therefore assert
// after their collectives, where all ranks come by. A world of one goes on.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "mpi_world.h"

namespace {

const millrace::World* world = nullptr;

class RankListener final : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    fmt::print(stderr, "rank {} of {}: {}:{}: {}\n", world->rank(), world->size(),
               result.file_name() ? result.file_name() : "?", result.line_number(), result.message());
    std::fflush(stderr);
  }

  void OnTestEnd(const testing::TestInfo& info) override {
    if (!info.result()->Failed() || world->size() == 1) return;
    fmt::print(stderr, "rank {} of {}: {}.{} failed, all ranks end\n", world->rank(), world->size(),
               info.test_suite_name(), info.name());
    std::fflush(nullptr);
    world->abort(static_cast<millrace::Exit>(1));
  }
};

}  // namespace

const millrace::World& test_world() {
  return *world;
}

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  millrace::World this_world;
  world = &this_world;
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (this_world.rank() != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new RankListener);
  return RUN_ALL_TESTS();
}
