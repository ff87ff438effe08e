#include "millrace/comm/watchdog.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <thread>

#include "core/temp_dir.h"
#include "millrace/core/files.h"
#include "millrace/core/stacks.h"
#include "millrace/core/stopwatch.h"
#include "mpi_world.h"

namespace millrace {
namespace {

// Whoever asks first; the others, on two nodes (two_nodes.cpp), know nothing of it. A rank that is suspected in vain
// may be suspected again.
TEST(Watchdog, OneRankGetsTheStacksOfAllEachTimeThatItAsks) {
  const auto& world = test_world();
  world.group().set_time_limit(300);  // tests before this one leave another
  const test::TempDir folder;
  const auto file = folder / "stacks.txt";
  const auto title = "rank " + std::to_string(world.rank());
  stacks::write_to(file, title);
  std::optional<Suspect> suspect;
  {
    const Watchdog watchdog(world, 3600, [&](const Suspect& found) { suspect = found; });
    for (int time = 0; time < 2; ++time) {
      const Stopwatch since;
      if (world.rank() == world.size() - 1) collect_stacks(200);
      EXPECT_LT(since.seconds(), 100);
      while (!(std::filesystem::exists(file) && stacks::written()) && since.seconds() < 100) std::this_thread::yield();
      EXPECT_TRUE(read_file(file).starts_with(title)) << read_file(file);
      std::filesystem::remove(file);
      world.group().barrier();
    }
  }
  EXPECT_FALSE(suspect) << suspect->what;
}

}  // namespace
}  // namespace millrace
