// Storage that stays away for a while, seen from whole runs.
#include <gtest/gtest.h>

#include "e2e/runs.h"

namespace millrace::e2e {
namespace {

// In front of the program: reads of these archives fail with EIO for `seconds` from the `after`-th read of each rank
// on.
std::string with_fault(int after, double seconds, const std::string& archives) {
  return "env LD_PRELOAD=" MILLRACE_FAULTS " MILLRACE_FAULT='5:" + std::to_string(after) + ":" +
         std::to_string(seconds) + ":" + archives + "' ";
}

const std::string half = "shapes/00000.tar|shapes/00002.tar";

std::string log_of(const std::string& run) {
  std::string text;
  for (const auto& entry : fs::directory_iterator(workshop() / run / "log")) text += read(entry.path());
  return text;
}

TEST(StorageStaysAway, IdsAreThoseOfAStraightRun) {
  const std::string settings = "'duration=24 steps' data.index=never ";
  expect_success(mpirun(3) + train("straight", settings));
  const auto ids = read(workshop() / "straight/ids.jsonl");
  // The third read lies in the pass for the index, the later ones in the middle of the first and of the second visit.
  for (const int after : {3, 20, 40}) {
    const std::string run = "away-" + std::to_string(after);
    expect_success(mpirun(3) + with_fault(after, 3, half) + train(run, settings));
    EXPECT_EQ(read(workshop() / run / "ids.jsonl"), ids) << run;
    EXPECT_EQ(read(workshop() / run / "ledger.json"), read(workshop() / "straight/ledger.json")) << run;
    const std::string log = log_of(run);
    EXPECT_NE(log.find(": read failed: EIO; trying again for up to 5 min"), std::string::npos) << run << "\n" << log;
    EXPECT_NE(log.find(".tar: can be read again, after "), std::string::npos) << run << "\n" << log;
  }
}

TEST(StorageStaysAway, ForTooLongIsAnErrorThatNamesTheArchive) {
  const auto outcome = shell(mpirun(3) + with_fault(20, 1000, "shapes/00002.tar") +
                             train("gone", "'duration=24 steps' roles.producers=1 'data.retry_for=1 s'"));
  EXPECT_EQ(outcome.exit_code, 74) << outcome.output;
  expect_mentions(outcome, "shapes/00002.tar: read failed for 1 s: EIO");
  expect_mentions(outcome, "data.retry_for");
}

// A signal meanwhile is obeyed as always: state is saved, and the next start goes on as if nothing had been.
TEST(StorageStaysAway, ASignalIsObeyed) {
  const std::string settings = "'duration=24 steps' data.index=never roles.producers=1 ", run = "stopped";
  expect_success(mpirun(3) + train("unstopped", settings));
  const auto script = workshop() / "rank.sh", pid = workshop() / "pid";
  std::ofstream(script) << "echo $$ > " + pid.string() + ".$OMPI_COMM_WORLD_RANK\nexec " + with_fault(20, 1000, half) +
                               train(run, settings) + "\n";
  const auto stopped = shell(mpirun(3) + "sh " + script.string() + " & pid=$!; " +
                             wait_for(workshop() / run / "log/rank-00002.log", "trying again") + "; kill -USR1 $(cat " +
                             pid.string() + ".0); wait $pid");
  EXPECT_EQ(stopped.exit_code, 75) << stopped.output;
  expect_success(mpirun(3) + train(run, settings));
  EXPECT_EQ(read(workshop() / run / "ids.jsonl"), read(workshop() / "unstopped/ids.jsonl"));
}

}  // namespace
}  // namespace millrace::e2e
