#include "millrace/comm/watchdog.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <thread>

#include "core/temp_dir.h"
#include "millrace/comm/roster.h"
#include "millrace/core/files.h"
#include "millrace/core/stacks.h"
#include "millrace/core/stopwatch.h"
#include "mpi_world.h"

namespace millrace {
namespace {

// Whoever asks first; the others know nothing of it.
TEST(Watchdog, OneRankGetsTheStacksOfAll) {
  const auto& world = test_world();
  world.group().set_time_limit(100);  // tests before this one leave another
  const test::TempDir folder;
  const auto file = folder / "stacks.txt";
  stacks::write_to(file, roster::describe({world.rank(), world.host()}));
  std::optional<Suspect> suspect;
  double seconds = 0;
  {
    const Watchdog watchdog(world, 3600, [&](const Suspect& found) { suspect = found; });
    if (world.rank() == world.size() - 1) {
      const Stopwatch since;
      collect_stacks(60);
      seconds = since.seconds();
    }
    for (const Stopwatch since; !stacks::written() && since.seconds() < 30;) std::this_thread::yield();
    world.group().barrier();
  }
  EXPECT_LT(seconds, 30);
  EXPECT_FALSE(suspect) << suspect->what;
  ASSERT_TRUE(stacks::written());
  EXPECT_TRUE(read_file(file).starts_with(roster::describe({world.rank(), world.host()}))) << read_file(file);
}

TEST(Roster, KnowsWhoTrainsAndWhoProduces) {
  const auto& world = test_world();
  world.group().set_time_limit(100);
  const bool trains = world.rank() == 0;
  roster::fill(world, trains ? "trainer" : "producer");
  EXPECT_EQ(roster::trainers().size(), 1u);
  EXPECT_EQ(roster::trainers().at(0).rank, 0);
  EXPECT_EQ(roster::producers().size(), static_cast<std::size_t>(world.size() - 1));
  if (!trains) {
    EXPECT_EQ(roster::producers().at(static_cast<std::size_t>(world.rank() - 1)).rank, world.rank());
  }
  roster::fill(world, "");
  EXPECT_EQ(roster::trainers().size(), static_cast<std::size_t>(world.size()));
  EXPECT_EQ(roster::producers().size(), static_cast<std::size_t>(world.size()));
}

}  // namespace
}  // namespace millrace
