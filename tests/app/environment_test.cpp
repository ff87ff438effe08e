#include "environment.h"

#include <gtest/gtest.h>

#include "core/temp_dir.h"

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

}  // namespace
}  // namespace millrace
