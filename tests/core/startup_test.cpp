#include "millrace/core/startup.h"

#include <gmock/gmock.h>

#include <chrono>
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
  EXPECT_THAT(startup::describe(), testing::MatchesRegex("0\\.[4-9] s: data 0\\.[2-9], networks 0\\.[1-9]"));
}

}  // namespace
}  // namespace millrace
