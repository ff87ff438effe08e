#include "millrace/core/startup.h"

#include <gtest/gtest.h>

#include <chrono>
#include <regex>
#include <string>
#include <thread>

namespace millrace {
namespace {

void spend(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

TEST(Startup, TellsWhatTookTime) {
  startup::begin();
  spend(120);
  startup::done("data");
  startup::done("plan");  // no time at all
  spend(120);
  startup::done("networks");
  spend(120);
  startup::done("data");  // more of it
  const auto told = startup::describe();
  std::smatch seconds;
  ASSERT_TRUE(std::regex_match(told, seconds, std::regex(R"((\d+\.\d) s: data (\d+\.\d), networks (\d+\.\d))")))
      << told;
  EXPECT_GE(std::stod(seconds[1]), 0.4) << told;
  EXPECT_GE(std::stod(seconds[2]), 0.2) << told;
  EXPECT_GE(std::stod(seconds[3]), 0.1) << told;
  EXPECT_LE(std::stod(seconds[2]) + std::stod(seconds[3]), std::stod(seconds[1]) + 0.15) << told << ", each rounded";
}

}  // namespace
}  // namespace millrace
