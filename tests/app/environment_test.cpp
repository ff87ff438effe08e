#include "environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/temp_dir.h"
#include "millrace/comm/world.h"
#include "run/run_description.h"

namespace millrace {
namespace {

TEST(Environment, LinesThatSayNothingAreUnknown) {
  const test::TempDir folder;
  const auto file = folder.write("os-release", "NAME=\"\"\nPRETTY_NAME=\"Some Linux\"\nMemTotal:   7 kB\n").string();
  EXPECT_EQ(first_line(file.c_str(), "PRETTY_NAME="), "Some Linux");
  EXPECT_EQ(first_line(file.c_str(), "MemTotal"), "7 kB");
  EXPECT_EQ(first_line(file.c_str(), "NAME="), "unknown");
  EXPECT_EQ(first_line(file.c_str(), "ID="), "unknown");
  EXPECT_EQ(first_line("/nowhere", "ID="), "unknown");
}

// By which a report says what to type next.
TEST(Environment, OfARunTellsWhereSuperviseWasToldToBegin) {
  World world;
  const Session session{world, torch::kCPU, 1};
  const auto described = [&] { return nlohmann::json::parse(environment_of(session, "trainer", 8)); };
  ::setenv("MILLRACE_TYPED_RESUME", "OLD/checkpoints/step-00000010", 1);
  const auto below_supervise = described();
  ::unsetenv("MILLRACE_TYPED_RESUME");
  EXPECT_EQ(below_supervise.value("typed_resume", ""), "OLD/checkpoints/step-00000010");
  EXPECT_FALSE(described().contains("typed_resume"));
}

}  // namespace
}  // namespace millrace
