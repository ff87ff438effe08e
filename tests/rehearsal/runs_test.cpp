// Whole runs by millrace_rehearsal, whose trainers exchange gradients and parameters through NCCL's part of the
// program, against the same runs over MPI: the same bits.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "e2e/runs.h"

namespace millrace::e2e {
namespace {

// The same command by the other program.
std::string rehearsed(std::string command) {
  return command.replace(command.find(millrace + " "), millrace.size(), MILLRACE_REHEARSAL);
}

// What has to be equal of two runs: each step's samples, loss and norm, and the weights and averages at the end.
void expect_same_run(const std::string& run, const std::string& wanted) {
  EXPECT_EQ(read(workshop() / run / "ids.jsonl"), read(workshop() / wanted / "ids.jsonl")) << run;
  const auto steps = lines(workshop() / run / "metrics.jsonl"),
             as_wanted = lines(workshop() / wanted / "metrics.jsonl");
  ASSERT_EQ(steps.size(), as_wanted.size()) << run;
  for (std::size_t i = 0; i < steps.size(); ++i)
    for (const char* name : {"step", "loss", "grad_norm", "validation_loss"})
      EXPECT_EQ(steps[i].value(name, -1.0), as_wanted[i].value(name, -1.0)) << run << ", line " << i + 1;
  EXPECT_EQ(read(weights_of(run)), read(weights_of(wanted))) << run << ": weights";
  EXPECT_EQ(read(weights_of(run, "ema")), read(weights_of(wanted, "ema"))) << run << ": averages";
}

void expect_rehearsal(const std::string& command) {
  const auto outcome = shell(rehearsed(command));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_mentions(outcome, "rehearsal: a group exchanges through pretended GPUs");
}

struct Case {
  std::string name;
  int ranks;
  std::string settings;
};

// With a validation every second step.
std::string settings_of(const Case& c, int steps) {
  return "'duration=" + std::to_string(steps) +
         " steps' 'validation.every=2 steps' validation.batches=2 data.validation.path=" +
         (workshop() / "shapes/00003.tar").string() + " " + c.settings;
}

void expect_same_over_mpi(const std::vector<Case>& cases) {
  for (const auto& c : cases) {
    expect_success(mpirun(c.ranks) + train(c.name, settings_of(c, 4)));
    expect_rehearsal(mpirun(c.ranks) + train(c.name + "-rehearsed", settings_of(c, 4)));
    expect_same_run(c.name + "-rehearsed", c.name);
  }
}

TEST(Rehearsal, RunsAreThoseOverMpi) {
  expect_same_over_mpi(
      {{"full", 4, "parallel.strategy=full_shard parallel.bucket_mb=0.05 model.gradient_checkpointing=true"},
       {"hybrid", 4, "parallel.strategy=hybrid parallel.shard_size=2 parallel.bucket_mb=0.2"}});
}

TEST(RehearsalMinutes, OtherRunsAreThoseOverMpi) {
  expect_same_over_mpi({{"ddp", 4, "parallel.strategy=ddp parallel.bucket_mb=0.1"},
                        {"grads", 4, "parallel.strategy=shard_grad_op roles.producers=1 data.stripes=8"},
                        {"half", 2, "parallel.reduce_dtype=bfloat16 batch.micro=1"}});
}

// Lives on other ranks and with other strategies, each of them against the same life over MPI.
TEST(Rehearsal, LivesAreThoseOverMpi) {
  const Case lives[] = {{"", 4, "parallel.strategy=full_shard parallel.bucket_mb=0.05 data.stripes=8"},
                        {"", 2, "parallel.strategy=ddp data.stripes=8"},
                        {"", 3, "parallel.strategy=shard_grad_op roles.producers=1 data.stripes=8"}};
  int steps = 0;
  for (const auto& life : lives) {
    steps += 3;
    expect_success(mpirun(life.ranks) + train("lives", settings_of(life, steps)));
    expect_rehearsal(mpirun(life.ranks) + train("lives-rehearsed", settings_of(life, steps)));
  }
  expect_same_run("lives-rehearsed", "lives");
}

// The others wait for it in a transfer.
TEST(Rehearsal, ATrainerThatStandsStillIsNamed) {
  const auto dir = workshop() / "still";
  fs::create_directories(dir);
  const auto pid = (dir / "pid").string();
  const auto command = rehearsed(train("still",
                                       "'duration=100000 steps' 'guard.hang_timeout=4 s' 'checkpoint.every=2 steps' "
                                       "parallel.strategy=full_shard data.stripes=6 batch.global=6"));
  std::ofstream(dir / "rank.sh") << "echo $$ > " + pid + ".$OMPI_COMM_WORLD_RANK\nexec " + command + "\n";
  const auto outcome =
      shell("timeout 600 env " + mpirun(3) + "sh " + (dir / "rank.sh").string() + " & run=$!; " +
            wait_for(dir / "metrics.jsonl", "\"step\":3,") + "; kill -STOP $(cat " + pid + ".1); wait $run");
  EXPECT_EQ(outcome.exit_code, 76) << outcome.output;
  expect_mentions(outcome, "rank 1 on ");
  EXPECT_TRUE(fs::exists(dir / "fault/rank-00001.json")) << outcome.output;
}

}  // namespace
}  // namespace millrace::e2e
