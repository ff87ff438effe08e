#include "millrace/train/state_file.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/temp_dir.h"
#include "millrace/core/files.h"

namespace millrace {
namespace {

nlohmann::json state_in(const fs::path& run) {
  return nlohmann::json::parse(read_file(run / "STATE"));
}

TEST(StateFile, TellsHowFarTheRunIs) {
  const test::TempDir run;
  const StateFile file(run.path());
  file.write(RunStatus::running, {.step = 3, .samples = 24}, std::nullopt);
  EXPECT_EQ(state_in(run.path())["step"], 3);
  EXPECT_TRUE(state_in(run.path())["exit"].is_null());
  file.update(RunStatus::stopping, {.step = 5, .samples = 40}, std::nullopt, "a signal");
  EXPECT_EQ(state_in(run.path())["state"], "stopping");
  EXPECT_EQ(state_in(run.path())["step"], 5);
  EXPECT_EQ(state_in(run.path())["reason"], "a signal");
  EXPECT_TRUE(state_in(run.path())["exit"].is_null());
  file.write(RunStatus::requeue, {.step = 5, .samples = 40}, std::nullopt, Exit::requeue, "a signal");
  EXPECT_EQ(state_in(run.path())["exit"], 75);
}

// By which slurm/outcome.sh knows a checkpoint of this job from one of another.
TEST(StateFile, NamesTheJobAndItsRestart) {
  const test::TempDir run;
  const StateFile file(run.path());
  ::setenv("SLURM_JOB_ID", "41", 1);
  ::setenv("SLURM_RESTART_COUNT", "2", 1);
  file.write(RunStatus::running, {.step = 3, .samples = 24}, std::nullopt);
  EXPECT_EQ(state_in(run.path())["job"], 41);
  EXPECT_EQ(state_in(run.path())["restart"], 2);
  ::unsetenv("SLURM_JOB_ID");
  ::unsetenv("SLURM_RESTART_COUNT");
  file.write(RunStatus::running, {.step = 3, .samples = 24}, std::nullopt);
  EXPECT_TRUE(state_in(run.path())["job"].is_null());
  EXPECT_TRUE(state_in(run.path())["restart"].is_null());
}

// A stopped process wakes up when the launcher ends it, and may be about to say that all is well.
TEST(StateFile, ARunThatAnotherRankHasEndedStaysEnded) {
  const test::TempDir run;
  const StateFile file(run.path());
  file.write(RunStatus::running, {.step = 3, .samples = 24}, std::nullopt);
  file.write_failed(Error(Exit::suspect_node, "rank 1 on n2 has not been heard of"));
  const auto ended = state_in(run.path());
  EXPECT_EQ(ended["state"], "requeue");
  EXPECT_EQ(ended["exit"], 76);
  file.update(RunStatus::running, {.step = 4, .samples = 32}, std::nullopt, "");
  EXPECT_EQ(state_in(run.path()), ended);
  file.write(RunStatus::running, {.step = 3, .samples = 24}, std::nullopt);  // the next start
  EXPECT_EQ(state_in(run.path())["state"], "running");
}

// Of a wait for storage, for example: the next start does the rest.
TEST(StateFile, AStopIsNoFailure) {
  const test::TempDir run;
  const StateFile file(run.path());
  file.write(RunStatus::running, {.step = 3, .samples = 24}, std::nullopt);
  file.write_failed(Error(Exit::requeue, "stopped while 00003.tar could not be read"));
  EXPECT_EQ(state_in(run.path())["state"], "requeue");
  EXPECT_EQ(state_in(run.path())["exit"], 75);
}

}  // namespace
}  // namespace millrace
