// Storage that stays away for a while, seen from whole runs.
#include <gmock/gmock.h>

#include "download/server.h"
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

const std::string settings = "'duration=24 steps' data.index=never ";

// A run with these settings that reads without a fault, made once.
const std::string& straight() {
  static const std::string run = [] {
    expect_success(mpirun(3) + train("straight", settings));
    return std::string("straight");
  }();
  return run;
}

TEST(StorageStaysAway, IdsAreThoseOfAStraightRun) {
  const auto ids = read(workshop() / straight() / "ids.jsonl");
  // The third read lies in the pass for the index, the later ones in the middle of the first and of the second visit.
  for (const int after : {3, 20, 40}) {
    const std::string run = "away-" + std::to_string(after);
    expect_success(mpirun(3) + with_fault(after, 1, half) + train(run, settings));
    EXPECT_EQ(read(workshop() / run / "ids.jsonl"), ids) << run;
    EXPECT_EQ(read(workshop() / run / "ledger.json"), read(workshop() / straight() / "ledger.json")) << run;
    const std::string log = log_of(run);
    EXPECT_NE(log.find(": read failed: EIO; trying again for up to 5 min"), std::string::npos) << run << "\n" << log;
    EXPECT_NE(log.find(".tar: can be read again, after "), std::string::npos) << run << "\n" << log;
  }
}

// Half of the archives, for a minute that begins in the first visit with the default index, without one in the second
// and in a later one.
TEST(StorageStaysAwayMinutes, ForAMinuteNoRowIsLost) {
  const std::string settings = "'duration=97 steps' roles.producers=2 data.stripes=4 encode.batch_size=5 ";
  expect_success(mpirun(4) + train("straight-4", settings));
  const auto expect_patience = [&](int after, const std::string& index) {
    const std::string run = "minute-" + std::to_string(after);
    for (const auto& entry : fs::directory_iterator(workshop() / "shapes"))
      if (entry.path().extension() == ".millrace-index") fs::remove(entry.path());
    expect_success(mpirun(4) + with_fault(after, 60, half) + train(run, settings + index));
    EXPECT_EQ(read(workshop() / run / "ids.jsonl"), read(workshop() / "straight-4/ids.jsonl")) << run;
    EXPECT_EQ(read(workshop() / run / "ledger.json"), read(workshop() / "straight-4/ledger.json")) << run;
    EXPECT_THAT(log_of(run), testing::ContainsRegex("[.]tar: can be read again, after (5[0-9]|6[0-9])[.]")) << run;
  };
  expect_patience(4, "");
  expect_patience(9, "data.index=never");
  expect_patience(13, "data.index=never");
}

TEST(StorageStaysAway, ForTooLongIsAnErrorThatNamesTheArchive) {
  const auto outcome = shell(mpirun(3) + with_fault(20, 1000, "shapes/00002.tar") +
                             train("gone", "'duration=24 steps' roles.producers=1 'data.retry_for=1 s'"));
  EXPECT_EQ(outcome.exit_code, 74) << outcome.output;
  expect_mentions(outcome, "shapes/00002.tar: read failed for 1 s: EIO");
  expect_mentions(outcome, "data.retry_for");
}

// A token that has run out for good: none of the archive's rows is passed over, and with a new one the run goes on.
TEST(StorageStaysAway, ARefusedAddressEndsTheRunWithItsStateSaved) {
  std::atomic<bool> refuse = false;
  std::atomic<int> asked = 0;
  test::TestServer server([&](const std::string& path, test::Client& client) {
    if (refuse && path == "/00002.tar" && ++asked > 1) return client.answer(403, "");
    client.answer(200, read(workshop() / "shapes" / path.substr(1)));
  });
  const std::string settings = "'duration=24 steps' roles.producers=1 'data.retry_for=1 s' data.train.path='" +
                               server.url("/{00000..00003}.tar") + "' ";
  expect_success(mpirun(2) + train("granted", settings));
  refuse = true;
  const auto outcome = shell(mpirun(2) + train("refused", settings));
  EXPECT_EQ(outcome.exit_code, 74) << outcome.output;
  expect_mentions(outcome, "/00002.tar: read failed for 1 s: The requested URL returned error: 403");
  EXPECT_EQ(log_of("refused").find("archive_error"), std::string::npos);
  const auto saved = checkpoints("refused");
  ASSERT_FALSE(saved.empty());
  EXPECT_GT(*saved.rbegin(), "step-00000008");
  refuse = false;
  expect_success(mpirun(2) + train("refused", settings));
  EXPECT_EQ(read(workshop() / "refused/ids.jsonl"), read(workshop() / "granted/ids.jsonl"));
  EXPECT_EQ(read(workshop() / "refused/ledger.json"), read(workshop() / "granted/ledger.json"));
}

// A signal meanwhile is obeyed as always: state is saved, and the next start goes on as if nothing had been.
TEST(StorageStaysAway, ASignalIsObeyed) {
  const std::string run = "stopped", command = train(run, settings + "roles.producers=1");
  const auto script = workshop() / "rank.sh", pid = workshop() / "pid";
  std::ofstream(script) << "echo $$ > " + pid.string() + ".$OMPI_COMM_WORLD_RANK\nexec " + with_fault(20, 1000, half) +
                               command + "\n";
  const auto stopped = shell(mpirun(3) + "sh " + script.string() + " & pid=$!; " +
                             wait_for(workshop() / run / "log/rank-00002.log", "trying again") + "; kill -USR1 $(cat " +
                             pid.string() + ".0); wait $pid");
  EXPECT_EQ(stopped.exit_code, 75) << stopped.output;
  expect_success(mpirun(3) + command);
  EXPECT_EQ(read(workshop() / run / "ids.jsonl"), read(workshop() / straight() / "ids.jsonl"));
}

// Both ranks fail to read a sample of the same step, when a save measures the latents of the step before.
TEST(StorageStaysAway, AnAutoencoderIsSavedToo) {
  const auto run = workshop() / "vae";
  const auto outcome = shell(
      mpirun(2) + with_fault(40, 1000, "shapes/") + millrace + " train-autoencoder run.dir=" + run.string() +
      " run.device=cpu model.pipeline=" + (workshop() / "tiny").string() +
      " data.train.path=" + (workshop() / "shapes").string() +
      " transform.resolution=32 batch.global=2 batch.micro=1 data.stripes=2 data.index=never 'data.retry_for=1 s' "
      "'optim.warmup=0 steps' 'log.every=1 steps' 'checkpoint.every=10000 steps' 'duration=100000 steps'");
  EXPECT_EQ(outcome.exit_code, 74) << outcome.output;
  const auto state = nlohmann::json::parse(read(run / "STATE"));
  EXPECT_EQ(state["state"], "requeue") << outcome.output;
  EXPECT_EQ(state["step"], lines(run / "metrics.jsonl").back()["step"]);
  ASSERT_TRUE(state["checkpoint"].is_string()) << outcome.output;
  const auto manifest = nlohmann::json::parse(read(fs::path(state["checkpoint"].get<std::string>()) / "MANIFEST.json"));
  EXPECT_TRUE(manifest["scaling_factor"].is_number()) << manifest["scaling_factor"];
}

std::string with_faults(const std::string& faults, const std::string& command) {
  return "env MILLRACE_INJECT='" + faults + "' " + MILLRACE_INJECT_BINARY + command.substr(millrace.size());
}

// When the second checkpoint is read back, for a while or for good. What was put aside before is somebody's to look at.
TEST(ReadBack, StorageThatStaysAwayDamagesNoCheckpoint) {
  const std::string settings = "'duration=8 steps' 'checkpoint.every=4 steps' checkpoint.keep=1 ";
  // Of two ranks each reads what the other one has written.
  const std::string read_of_step_8 = ":*:read=checkpoints/step-00000008/shard-00000-of-0000";
  const auto soon =
      shell(mpirun(2) + with_faults("eio@1" + read_of_step_8 + "2.safetensors:1+:2 count=" + workshop().string(),
                                    train("back-soon", settings)));
  EXPECT_EQ(soon.exit_code, 0) << soon.output;
  expect_mentions(soon, "millrace_inject: rank 1, ");
  EXPECT_EQ(checkpoints("back-soon"), std::set<std::string>{"step-00000008"}) << "it was read, and replaces the first";
  const auto first_shard = checkpoint("back-soon", 4) / "shard-00000-of-00002.safetensors";
  EXPECT_EQ(count(read(workshop() / "rank-1.tsv"), "\topen\t" + first_shard.string() + "\n"), 2)
      << "to forget what is cached of it, and to read it";

  const auto aside = workshop() / "back-never/checkpoints/step-00000002.damaged";
  fs::create_directories(aside);
  const auto outcome = shell(with_faults("eio@*" + read_of_step_8 + "1.safetensors:1+", train("back-never", settings)));
  EXPECT_EQ(outcome.exit_code, 74) << "the last one: nobody knows whether phase 2 could begin with it\n"
                                   << outcome.output;
  expect_mentions(outcome, "could not be read back: ");
  const std::set<std::string> left{"step-00000002.damaged", "step-00000004", "step-00000008"};
  EXPECT_EQ(checkpoints("back-never"), left);
  EXPECT_FALSE(fs::exists(workshop() / "back-never/DONE"));
  const auto still = shell(with_faults("eio@*:*:open=checkpoints/step-00000008/:1+", train("back-never", settings)));
  EXPECT_EQ(still.exit_code, 74) << still.output;
  expect_mentions(still, "try again, or move this checkpoint away");
  expect_success(train("back-never", settings));
  EXPECT_EQ(checkpoints("back-never"), left);
  EXPECT_TRUE(fs::exists(workshop() / "back-never/DONE"));
}

// Shell text: starts the training, which stops where it is about to read its checkpoint of step 4 back; `meanwhile`
// happens then, and the rest behind it. `$run` is the process.
std::string stopped_at_step_4(const std::string& command, const std::string& meanwhile) {
  return with_faults("stop@*:*:open=checkpoints/step-00000004/shard-00000-of-00001.safetensors", command) +
         " & run=$!; " + wait_for("/proc/$run/status", "State:.T") + "; " + meanwhile + "; kill -CONT $run; ";
}

// What another node has renamed may take a while to be seen.
TEST(ReadBack, AFileMayComeLate) {
  const auto run = workshop() / "late";
  const auto file = (run / "checkpoints/step-00000004/ledger.json").string(), aside = (run / "aside").string();
  const auto outcome = shell(stopped_at_step_4(train("late", "'duration=4 steps' "), "mv " + file + " " + aside) +
                             "sleep 2; kill -0 $run || echo ended early; mv " + aside + " " + file + "; wait $run");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  for (const char* text : {"is gone", "ended early", "mv: ", "never stood in"})
    EXPECT_EQ(outcome.output.find(text), std::string::npos) << outcome.output;
}

TEST(ReadBack, OtherBytesAreDamage) {
  const auto run = workshop() / "other-bytes";
  const auto file = (run / "checkpoints/step-00000004/shard-00000-of-00001.safetensors").string();
  const auto outcome =
      shell(stopped_at_step_4(train("other-bytes", "'duration=8 steps' 'checkpoint.every=4 steps' "),
                              "printf x | dd of=" + file + " bs=1 seek=5000 conv=notrunc status=none") +
            "wait $run");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_mentions(outcome, "cannot be read back as it was");
  EXPECT_TRUE(checkpoints("other-bytes").contains("step-00000004.damaged"));
}

}  // namespace
}  // namespace millrace::e2e
