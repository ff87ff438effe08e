// guard.on_repeat=rollback through the real binary, with NaNs in the sums of steps: the run goes back and leaves the
// bad steps out. The reference is a run that may skip as many as it likes.
#include <gtest/gtest.h>

#include "e2e/runs.h"
#include "e2e/weights.h"

namespace millrace::e2e {
namespace {

const std::string bad_14_to_16 = "nan@0:14:mpi-reduce nan@0:15:mpi-reduce nan@0:16:mpi-reduce";

// The same training with a fault in each of these steps, in the program made for that.
std::string with_nans(const std::string& command, int first, int last, const std::string& more = "") {
  std::string faults = more;
  for (int step = first; step <= last; ++step) faults += " nan@0:" + std::to_string(step) + ":mpi-reduce";
  return "env MILLRACE_INJECT='" + faults + "' " + std::string(MILLRACE_INJECT_BINARY) +
         command.substr(millrace.size());
}

const std::string apart = "'duration=12 steps' roles.producers=1 ";
const std::string back = "guard.max_skips=2 guard.on_repeat=rollback ";

// Steps 6 to 8 are skipped.
const std::string& reference() {
  static const std::string run = [] {
    expect_success(mpirun(3) + with_nans(train("skipping", apart + "guard.max_skips=10"), 6, 8));
    return std::string("skipping");
  }();
  return run;
}

void expect_as_reference(const std::string& run) {
  EXPECT_EQ(read(workshop() / run / "ids.jsonl"), read(workshop() / reference() / "ids.jsonl")) << run;
  EXPECT_EQ(largest_difference(read_weights(weights_of(run)), read_weights(weights_of(reference()))), 0.0) << run;
  const auto metrics = lines(workshop() / run / "metrics.jsonl"),
             expected = lines(workshop() / reference() / "metrics.jsonl");
  ASSERT_EQ(metrics.size(), 12u);
  for (std::size_t i = 0; i < 12; ++i)
    for (const char* key : {"step", "samples", "skipped", "loss", "grad_norm", "lr"})
      EXPECT_EQ(metrics[i][key], expected[i][key]) << run << ": " << key << " of step " << i + 1;
}

TEST(Rollback, LeavesOutWhatWasBadAndTrainsTheRestAsAlways) {
  const auto outcome = shell(mpirun(3) + with_nans(train("back", apart + back), 6, 8));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_mentions(outcome, "step-00000004; steps 6 to 8 will be left out");
  expect_as_reference("back");
  const auto state = nlohmann::json::parse(read(checkpoint("back", 8) / "MANIFEST.json"))["state"];
  EXPECT_EQ(state["used_up"], nlohmann::json::parse(R"([{"first": 6, "last": 8, "checkpoint": 4}])"));
  EXPECT_EQ(state["skipped"], 3);
}

// One rank does all; its sums are its own.
TEST(Rollback, OfRanksThatDoBoth) {
  expect_success(mpirun(2) + with_nans(train("both-skipping", "'duration=12 steps'"), 6, 8));
  expect_success(mpirun(2) + with_nans(train("both-back", "'duration=12 steps' " + back), 6, 8));
  EXPECT_EQ(read(workshop() / "both-back/ids.jsonl"), read(workshop() / "both-skipping/ids.jsonl"));
  EXPECT_EQ(largest_difference(read_weights(weights_of("both-back")), read_weights(weights_of("both-skipping"))), 0.0);
}

// Killed in step 9, when the run had gone back from step 8 to 5 and written nothing since.
TEST(Rollback, SurvivesADeathBeforeTheNextCheckpoint) {
  const std::string settings = apart + back + "'checkpoint.every=5 steps'";
  const auto killed = shell(mpirun(3) + with_nans(train("killed", settings), 6, 8, "kill@0:9:*"));
  EXPECT_NE(killed.exit_code, 0);
  expect_mentions(killed, "step-00000005; steps 6 to 8 will be left out");
  EXPECT_EQ(*checkpoints("killed").rbegin(), "step-00000005");
  fs::copy(workshop() / "killed", workshop() / "other-batches", fs::copy_options::recursive);
  const auto again = shell(mpirun(3) + train("killed", settings));
  EXPECT_EQ(again.exit_code, 0) << again.output;
  expect_mentions(again, "step 6 is left out");
  expect_as_reference("killed");

  // With other batches the same steps are other samples. Of as many stripes: else the data would begin anew.
  const auto manifest = nlohmann::json::parse(read(checkpoint("other-batches", 5) / "MANIFEST.json"));
  const auto stripes = std::to_string(manifest["data"]["stripes"].get<int>());
  const auto other = shell(mpirun(3) + train("other-batches", settings + " batch.global=16 data.stripes=" + stripes +
                                                                  " checkpoint.allow_changes=true"));
  EXPECT_EQ(other.exit_code, 0) << other.output;
  EXPECT_EQ(other.output.find("read from their beginning"), other.output.npos) << other.output;
  EXPECT_EQ(other.output.find("is left out"), other.output.npos) << other.output;
}

TEST(Rollback, ASecondTimeAtTheSamePlaceEndsTheRun) {
  const auto outcome = shell(mpirun(3) + with_nans(train("again", apart + back), 6, 12));
  EXPECT_EQ(outcome.exit_code, 78) << outcome.output;
  expect_mentions(outcome, "steps 9 to 11 are bad, after training had gone back to step-00000004");
  EXPECT_FALSE(fs::exists(workshop() / "again/DONE"));
  EXPECT_EQ(nlohmann::json::parse(read(workshop() / "again/STATE"))["state"], "failed");
}

TEST(Rollback, ALaterPlaceIsAnotherOne) {
  const auto command = with_nans(train("twice", "'duration=20 steps' roles.producers=1 " + back), 6, 8, bad_14_to_16);
  expect_success(mpirun(3) + command);
  const auto state = nlohmann::json::parse(read(checkpoint("twice", 20) / "MANIFEST.json"))["state"];
  EXPECT_EQ(state["skipped"], 6);
  EXPECT_EQ(state["used_up"].size(), 2u);
  EXPECT_EQ(state["used_up"][1]["checkpoint"], 12);
}

// An older checkpoint was chosen: the newer ones are not of this run, though they are there until it saves. It saves
// nothing before other steps are bad as well, and training would begin there a third time.
TEST(Rollback, GoesBackToTheCheckpointThatTheUserChoseAndOnlyOnce) {
  fs::copy(workshop() / reference(), workshop() / "chosen", fs::copy_options::recursive);
  const auto settings = "'duration=20 steps' roles.producers=1 'checkpoint.every=20 steps' checkpoint.resume=" +
                        checkpoint("chosen", 4).string() + " " + back;
  const auto outcome = shell(mpirun(3) + with_nans(train("chosen", settings), 10, 12, bad_14_to_16));
  EXPECT_EQ(outcome.exit_code, 78) << outcome.output;
  expect_mentions(outcome, "step-00000004; steps 10 to 12 will be left out");
  expect_mentions(outcome,
                  "steps 14 to 16 are bad, after training had gone back to step-00000004 and left out steps 10 "
                  "to 12: once more would not help");
}

// The first life ends after two bad steps, and keeps what the second one goes back to.
TEST(Rollback, AStopInTheMiddleOfBadStepsIsNotGoneBackTo) {
  const std::string settings = "roles.producers=1 checkpoint.keep=1 " + back;
  expect_success(mpirun(3) + with_nans(train("middle", "'duration=7 steps' " + settings), 6, 7));
  EXPECT_EQ(checkpoints("middle"), (std::set<std::string>{"step-00000004", "step-00000007"}));
  const auto outcome = shell(mpirun(3) + with_nans(train("middle", "'duration=12 steps' " + settings), 8, 8));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_mentions(outcome, "step-00000004; steps 6 to 8 will be left out");
  expect_as_reference("middle");
  EXPECT_TRUE(checkpoints("middle").contains("step-00000012"));
  EXPECT_FALSE(checkpoints("middle").contains("step-00000004"));
  EXPECT_FALSE(checkpoints("middle").contains("step-00000007")) << "is set aside";
}

// A run that goes on from another one's checkpoint goes back to that one's, not to what its folder has of another time.
TEST(Rollback, AStopInTheMiddleOfBadStepsOfAnotherRunGoesBackThere) {
  const std::string settings = "roles.producers=1 checkpoint.keep=9 " + back;
  expect_success(mpirun(3) + with_nans(train("old", "'duration=7 steps' " + settings), 6, 7));
  expect_success(mpirun(3) + train("new", "'duration=4 steps' optim.lr=0.5 " + settings));
  const auto goes_on = [&](const fs::path& from) {
    return shell(
        mpirun(3) +
        with_nans(train("new", "'duration=12 steps' checkpoint.resume=" + from.string() + " " + settings), 8, 8));
  };
  const auto aside = checkpoint("old", 7).string() + ".abandoned-0123abcd";
  fs::copy(checkpoint("old", 7), aside);
  const auto refused = goes_on(aside);
  EXPECT_EQ(refused.exit_code, 78) << refused.output;
  expect_mentions(refused, "has no known checkpoint before them");
  const auto outcome = goes_on(checkpoint("old", 7));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_mentions(outcome, "/old/checkpoints/step-00000004; steps 6 to 8 will be left out");
  EXPECT_EQ(largest_difference(read_weights(weights_of("new")), read_weights(weights_of(reference()))), 0.0);
}

// Odd numbers of trainers and micro-batches, everything that a life holds in a shape of its own.
TEST(Rollback, OfShardedBfloat16WithStratifiedTimestepsAndValidation) {
  const std::string settings =
      "'duration=9 steps' roles.producers=1 parallel.strategy=full_shard model.dtype=bfloat16 "
      "objective.timesteps=stratified batch.micro=1 data.validation.path=" +
      (workshop() / "shapes/00003.tar").string() + " 'validation.every=5 steps' validation.batches=1 ";
  expect_success(mpirun(4) + with_nans(train("sharded-skipping", settings), 6, 8));
  expect_success(mpirun(4) + with_nans(train("sharded-back", settings + back), 6, 8));
  EXPECT_EQ(read(workshop() / "sharded-back/ids.jsonl"), read(workshop() / "sharded-skipping/ids.jsonl"));
  EXPECT_EQ(largest_difference(read_weights(weights_of("sharded-back")), read_weights(weights_of("sharded-skipping"))),
            0.0);
}

TEST(Rollback, NeedsCheckpoints) {
  const auto outcome = shell(train("none", apart + back + "checkpoint.every=null"));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  expect_mentions(outcome, "guard.on_repeat");
}

TEST(Rollback, WithoutACheckpointFromBeforeEndsTheRun) {
  const auto outcome = shell(mpirun(3) + with_nans(train("nowhere", apart + back), 2, 4));
  EXPECT_EQ(outcome.exit_code, 78) << outcome.output;
  expect_mentions(outcome, "no checkpoint from before");
}

}  // namespace
}  // namespace millrace::e2e
