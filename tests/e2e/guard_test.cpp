// Runs that must not go on: numbers that are not finite (exit 78), too many bad samples (77), a rank that hangs (76).
#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "e2e/runs.h"
#include "e2e/weights.h"

namespace millrace::e2e {
namespace {

// The first update throws the weights out of all proportion; no step after it is finite.
const std::string blown_up = " optim.lr=1e30 'checkpoint.every=1 steps' checkpoint.keep=100 ";

TEST(Numerics, StepsThatAreNotFiniteAreSkipped) {
  expect_success(train("skipped", "'duration=4 steps' guard.max_skips=3" + blown_up));
  const auto run = workshop() / "skipped";
  const auto metrics = lines(run / "metrics.jsonl");
  ASSERT_EQ(metrics.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(metrics[i]["skipped"], i) << metrics[i];
    EXPECT_EQ(metrics[i]["loss"].is_number(), i == 0) << metrics[i];
    EXPECT_EQ(metrics[i]["loss"].is_null(), i > 0) << metrics[i];
    EXPECT_EQ(metrics[i]["grad_norm"].is_null(), i > 0) << metrics[i];
  }
  EXPECT_EQ(lines(run / "ids.jsonl").size(), 4u);

  const auto state = nlohmann::json::parse(read(checkpoint("skipped", 4) / "MANIFEST.json"))["state"];
  EXPECT_EQ(state["step"], 4);
  EXPECT_EQ(state["samples"], 32);
  EXPECT_EQ(state["skipped"], 3);
  EXPECT_EQ(state["updates"], 1);
  EXPECT_EQ(state["ema_updates"], 1);
  const std::string file = "shard-00000-of-00001.safetensors";
  EXPECT_TRUE(read(checkpoint("skipped", 4) / file) == read(checkpoint("skipped", 1) / file))
      << "weights, EMA and moments are those of the only update";
  for (const auto& [name, values] : read_weights(checkpoint("skipped", 4) / file))
    for (const float value : values) ASSERT_TRUE(std::isfinite(value)) << name;
}

TEST(Numerics, TooManyInARowEndTheRunWithoutACheckpoint) {
  for (const auto& launch : {std::string(), mpirun(3)}) {
    const std::string run = launch.empty() ? "too-many" : "too-many-of-three";
    const auto outcome = shell(launch + train(run, "'duration=9 steps' guard.max_skips=1" + blown_up +
                                                       (launch.empty() ? "" : "roles.producers=1")));
    EXPECT_EQ(outcome.exit_code, 78) << outcome.output;
    expect_mentions(outcome, "step 3");
    expect_mentions(outcome, "00000/");  // samples of the step: half of the stripes are lanes of the first two archives
    const auto log = read(workshop() / run / "log/rank-00000.log");
    EXPECT_NE(log.find("all samples of step 3: "), std::string::npos) << "of the step that ends it, too: " << log;
    EXPECT_FALSE(fs::exists(workshop() / run / "DONE"));
    EXPECT_EQ(checkpoints(run), (std::set<std::string>{"step-00000001", "step-00000002"}));
  }
}

TEST(Numerics, StopAllowsNone) {
  const auto outcome = shell(train("stops", "'duration=9 steps' guard.non_finite=stop" + blown_up));
  EXPECT_EQ(outcome.exit_code, 78) << outcome.output;
  expect_mentions(outcome, "step 2");
  EXPECT_EQ(checkpoints("stops"), std::set<std::string>{"step-00000001"});
}

// A folder with the workshop's four archives of 24 images, and one of 60 files that are none.
const fs::path& spoiled() {
  static const fs::path folder = [] {
    const auto path = workshop() / "spoiled";
    fs::create_directories(path / "files");
    for (const auto& archive : fs::directory_iterator(workshop() / "shapes"))
      if (archive.path().extension() == ".tar") fs::copy_file(archive.path(), path / archive.path().filename());
    for (int i = 0; i < 60; ++i) {
      std::ofstream(path / "files" / (std::to_string(100 + i) + ".jpg")) << "<html>404</html>";
      std::ofstream(path / "files" / (std::to_string(100 + i) + ".txt")) << "a red circle";
    }
    expect_success("tar -C " + (path / "files").string() + " --sort=name -cf " + (path / "spoiled.tar").string() +
                   " . && rm -r " + (path / "files").string());
    return path;
  }();
  return folder;
}

TEST(BadSamples, TooManyEndTheRun) {
  for (const auto& launch : {std::string(), mpirun(3)}) {
    const std::string run = launch.empty() ? "bad" : "bad-of-three";
    const auto outcome = shell(launch + train(run, "'duration=1000 steps' data.train.path=" + spoiled().string() +
                                                       (launch.empty() ? "" : " roles.producers=1")));
    EXPECT_EQ(outcome.exit_code, 77) << outcome.output;
    EXPECT_EQ(count(outcome.output, "millrace: "), 1) << "told once: " << outcome.output;
    for (const char* text : {"rows are bad", "data.max_bad_share = 0.2", "not_an_image", "spoiled.tar"})
      expect_mentions(outcome, text);
    EXPECT_FALSE(fs::exists(workshop() / run / "DONE"));
    const auto ledger = nlohmann::json::parse(read(workshop() / run / "ledger.json"));
    EXPECT_GE(ledger["rows"], 100) << ledger;
    EXPECT_GT(ledger["rejected"]["not_an_image"], ledger["rows"].get<double>() / 5) << ledger;
    const auto* const list = launch.empty() ? "rank-00000.jsonl" : "rank-00002.jsonl";  // the producer's
    EXPECT_EQ(names_in(workshop() / run / "rejected"), std::set<std::string>{list});
    for (const auto& row : lines(workshop() / run / "rejected" / list))
      EXPECT_TRUE(row["archive"].get<std::string>().ends_with("spoiled.tar")) << row;
  }
  // 30 steps read all rows.
  const auto autoencoder =
      shell(millrace + " train-autoencoder run.dir=" + (workshop() / "bad-for-vae").string() +
            " run.device=cpu model.pipeline=" + (workshop() / "tiny").string() +
            " transform.resolution=32 batch.global=8 batch.micro=8 data.shuffle_block=2 'log.every=1 steps' "
            "'duration=30 steps' data.train.path=" +
            spoiled().string());
  EXPECT_EQ(autoencoder.exit_code, 77) << autoencoder.output;
  for (const char* text : {"rows are bad", "data.max_bad_share = 0.2"}) expect_mentions(autoencoder, text);
}

TEST(BadSamples, TooManyMakeNoCache) {
  const auto cache = workshop() / "bad-cache";
  const auto outcome =
      shell(millrace + " preprocess run.dir=" + (workshop() / "bad-filled").string() +
            " run.device=cpu model.pipeline=" + (workshop() / "tiny").string() +
            " transform.resolution=32 data.train.path=" + spoiled().string() + " encode.cache=" + cache.string());
  EXPECT_EQ(outcome.exit_code, 77) << outcome.output;
  expect_mentions(outcome, "data.max_bad_share = 0.2");
  const auto ledger = nlohmann::json::parse(read(workshop() / "bad-filled/ledger.json"));
  EXPECT_GT(ledger["rejected"]["not_an_image"], ledger["rows"].get<double>() / 5) << ledger;
  EXPECT_FALSE(fs::exists(cache / "MANIFEST.json"));
  EXPECT_FALSE(fs::exists(workshop() / "bad-filled/DONE"));
}

// Too few to be judged before the pass is over.
TEST(BadSamples, OfFewRowsAreJudgedAtTheEndOfThePass) {
  const auto small = workshop() / "small";
  fs::create_directories(small / "files");
  fs::copy_file(workshop() / "shapes/00000.tar", small / "good.tar");
  for (int i = 0; i < 10; ++i) {
    std::ofstream(small / "files" / (std::to_string(i) + ".jpg")) << "<html>404</html>";
    std::ofstream(small / "files" / (std::to_string(i) + ".txt")) << "a red circle";
  }
  expect_success("tar -C " + (small / "files").string() + " --sort=name -cf " + (small / "bad.tar").string() +
                 " . && rm -r " + (small / "files").string());
  const std::string data = " 'duration=100 steps' data.stripes=4 data.train.path=" + small.string();
  for (const auto& launch : {std::string(), mpirun(3)}) {
    const auto outcome = shell(launch + train(launch.empty() ? "few" : "few-of-three", data));
    EXPECT_EQ(outcome.exit_code, 77) << outcome.output;
    expect_mentions(outcome, "10 of 34 rows are bad");
  }
  expect_success(train("few-allowed", data + " 'duration=4 steps' data.max_bad_share=0.3"));  // a pass is three
}

// Its captions are in its JSON: no sample would ever come.
TEST(BadSamples, ADryRunNoticesThatNoRowCanBeUsed) {
  const auto folder = workshop() / "captions-in-json";
  fs::create_directories(folder / "files");
  fs::copy_file(workshop() / "shapes/00000.tar", folder / "shapes.tar");
  expect_success("cd " + (folder / "files").string() + " && tar -xf ../shapes.tar && for t in *.txt; do mv $t " +
                 "${t%.txt}.json; done && tar --sort=name -cf ../00000.tar . && rm ../shapes.tar");
  const auto outcome = shell(train("in-json", "--dry-run data.train.path=" + (folder / "00000.tar").string()));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_mentions(outcome, "none of the first 24 rows of");
  expect_mentions(outcome, "24 missing_caption (no txt; it has jpg, json)");
  expect_mentions(outcome, "json.KEY");
}

TEST(BadSamples, AreLeftOutWhereTheUserAllowsThem) {
  expect_success(train("allowed", "'duration=30 steps' data.max_bad_share=0.7 data.train.path=" + spoiled().string()));
  const auto ledger = nlohmann::json::parse(read(workshop() / "allowed/ledger.json"));
  EXPECT_EQ(ledger["accepted"], 96) << ledger;
  EXPECT_EQ(ledger["rejected"]["not_an_image"], 60) << ledger;
  const auto steps = lines(workshop() / "allowed/ids.jsonl");
  ASSERT_EQ(steps.size(), 30u);
  for (const auto& line : steps)
    for (const std::string id : line["ids"]) EXPECT_FALSE(id.starts_with("spoiled/")) << id;
}

TEST(BadSamples, NothingElseEndsTheRunAtOnce) {
  const auto outcome = shell(mpirun(2) + train("nothing", "'duration=9 steps' roles.producers=1 data.train.path=" +
                                                              (spoiled() / "spoiled.tar").string()));
  EXPECT_EQ(outcome.exit_code, 77) << outcome.output;
  expect_mentions(outcome, "not_an_image");
  const auto ledger = nlohmann::json::parse(read(workshop() / "nothing/ledger.json"));
  EXPECT_GE(ledger["rows"], 3) << ledger;
  EXPECT_LE(ledger["rows"], 60) << "of several passes each row once";
  EXPECT_EQ(ledger["rejected"]["not_an_image"], ledger["rows"]) << ledger;
}

// A run without end with one producer, the last rank, to which `meanwhile` happens from a step on; $pid.1 there is a
// file with the process number of rank 1, $run that of the whole.
Outcome run_with(const std::string& run, int ranks, const std::string& settings, int step,
                 const std::string& meanwhile) {
  const auto dir = workshop() / run;
  fs::create_directories(dir);
  const auto pid = (dir / "pid").string();
  const auto command = train(run, "'duration=100000 steps' roles.producers=1 " + settings);
  std::ofstream(dir / "rank.sh") << "echo $$ > " + pid + ".$OMPI_COMM_WORLD_RANK\nexec " + command + "\n";
  return shell("timeout 600 env " + mpirun(ranks) + "sh " + (dir / "rank.sh").string() + " & run=$!; pid=" + pid +
               "; " + wait_for(dir / "metrics.jsonl", "\"step\":" + std::to_string(step) + ",") + "; " + meanwhile +
               "; wait $run");
}

// One rank stands still from step 3 on.
Outcome hang(const std::string& run, int ranks, int hanging_rank) {
  return run_with(run, ranks, "'guard.hang_timeout=4 s' 'checkpoint.every=2 steps'", 3,
                  "kill -STOP $(cat $pid." + std::to_string(hanging_rank) + ")");
}

fs::path stacks_of(const std::string& run, int rank) {
  return workshop() / run / "log" / ("stacks-rank-0000" + std::to_string(rank) + ".txt");
}

// The one that waits for it cannot know which it is; the watchdog does.
TEST(Hang, ATrainerThatStandsStillIsNamed) {
  for (const int rank : {1, 0}) {
    const auto name = "still-trainer-" + std::to_string(rank);
    const auto outcome = hang(name, 3, rank);
    EXPECT_EQ(outcome.exit_code, 76) << outcome.output;
    expect_mentions(outcome, "rank " + std::to_string(rank) + " on ");
    expect_mentions(outcome, "has not been heard of");
    expect_mentions(outcome, "hint: the same command continues from what was saved last");
    const auto fault =
        nlohmann::json::parse(read(workshop() / name / ("fault/rank-0000" + std::to_string(rank) + ".json")));
    EXPECT_EQ(fault["exit"], 76);
    EXPECT_GE(fault["step"], 0);
    EXPECT_EQ(fault["role"], "trainer");
    EXPECT_EQ(nlohmann::json::parse(read(workshop() / name / "STATE"))["state"], "requeue");

    const auto stacks = read(stacks_of(name, 1 - rank));
    EXPECT_NE(stacks.find("millrace::run_loop("), stacks.npos) << "of the trainer that waits: " << stacks;
    expect_mentions(outcome, "log/stacks-rank-*.txt");
  }
}

// In the program made for faults, on three ranks, before the run folder is open.
Outcome train_with(const std::string& fault, const std::string& run, const std::string& settings) {
  return shell(mpirun(3) + "env MILLRACE_INJECT=" + fault + " " + MILLRACE_INJECT_BINARY +
               train(run, settings).substr(millrace.size()));
}

TEST(HangMinutes, WhoStandsStillInLoadingIsNamed) {
  const auto stopped = train_with("stop@1:*:open=unet/config.json", "stopped-in-loading",
                                  "'guard.hang_timeout=4 s' model.unet.init=pretrained");
  EXPECT_EQ(stopped.exit_code, 76) << stopped.output;
  expect_mentions(stopped, "rank 1 on ");
  expect_mentions(stopped, "has not been heard of for 1");
  expect_mentions(stopped, "the run's folder was not open yet");
  EXPECT_FALSE(fs::exists(workshop() / "stopped-in-loading"));

  // As where a file system does not answer: the process lives, and says so.
  const auto hanging = train_with("hang@0:*:open=shapes/00000.tar", "hangs-in-listing", "'guard.hang_timeout=10 s'");
  EXPECT_EQ(hanging.exit_code, 76) << hanging.output;
  expect_mentions(hanging, "rank 0 on ");
  expect_mentions(hanging, " s, in starting; the run's folder was not open yet");
  EXPECT_FALSE(fs::exists(workshop() / "hangs-in-listing"));
}

// As where a file system does not answer: nobody else is there to miss it.
TEST(Hang, ARankOfItsOwnThatStandsStillLeaves) {
  const auto outcome =
      shell("timeout 600 env MILLRACE_INJECT=hang@0:4:write=metrics.jsonl " + std::string(MILLRACE_INJECT_BINARY) +
            train("alone", "'duration=9 steps' 'guard.hang_timeout=4 s'").substr(millrace.size()));
  EXPECT_EQ(outcome.exit_code, 76) << outcome.output;
  expect_mentions(outcome, "rank 0 on ");
  EXPECT_EQ(nlohmann::json::parse(read(workshop() / "alone/STATE"))["state"], "requeue");
  EXPECT_TRUE(fs::exists(workshop() / "alone/fault/rank-00000.json"));
}

// Suspended for longer than any limit allows, once while trainers wait for samples and once while they wait for each
// other: what was first stopped goes on last.
TEST(HangMinutes, NobodyIsBlamedAfterAPauseOfTheWholeRun) {
  const auto metrics = (workshop() / "suspended/metrics.jsonl").string();
  const auto outcome = run_with(
      "suspended", 3, "'guard.hang_timeout=12 s' 'checkpoint.every=100000 steps'", 5,
      "p() { kill -$1 $(cat $pid.$2); }; lines() { wc -l < " + metrics +
          "; }; p STOP 2; for i in $(seq 30); do n=$(lines); sleep 2; [ $n = $(lines) ] && break; done; "
          "p STOP 0; p STOP 1; sleep 30; p CONT 0; p CONT 1; sleep 2; p CONT 2; sleep 5; "
          "p STOP 1; sleep 2; p STOP 0; p STOP 2; sleep 30; p CONT 0; p CONT 2; sleep 2; p CONT 1; sleep 5; p USR1 0");
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
  EXPECT_FALSE(fs::exists(workshop() / "suspended/fault"));
  EXPECT_EQ(nlohmann::json::parse(read(workshop() / "suspended/STATE"))["state"], "requeue");
}

// With guard.hang_timeout at half an hour.
TEST(HangMinutes, ARunThatKnowsItsStepsNamesARankAfterAMinute) {
  const auto outcome = run_with("learned", 3, "'checkpoint.every=1000 steps'", 30, "kill -STOP $(cat $pid.1)");
  EXPECT_EQ(outcome.exit_code, 76) << outcome.output;
  expect_mentions(outcome, "has not been heard of for 6");
  EXPECT_TRUE(fs::exists(workshop() / "learned/fault/rank-00001.json"));
  for (const int rank : {0, 2}) EXPECT_TRUE(fs::exists(stacks_of("learned", rank))) << rank;
}

// From the second epoch on the producer waits for somebody who writes into the pipe.
TEST(Hang, TheStacksTellWhereAProducerHangs) {
  const auto images = workshop() / "pipe-in-place";
  fs::copy(workshop() / "shapes", images);
  const auto archive = (images / "00002.tar").string();
  const auto outcome = run_with("hanging-read", 2, "'guard.hang_timeout=4 s' data.train.path=" + images.string(), 3,
                                "mkfifo " + archive + ".pipe; mv " + archive + ".pipe " + archive);
  EXPECT_EQ(outcome.exit_code, 76) << outcome.output;
  expect_mentions(outcome, "from the producer on rank 1");
  expect_mentions(outcome, "log/stacks-rank-*.txt");
  const auto stacks = read(stacks_of("hanging-read", 1));
  EXPECT_NE(stacks.find("millrace::WebDatasetSource::open("), stacks.npos) << stacks;
  EXPECT_TRUE(fs::exists(stacks_of("hanging-read", 0)));
}

// A rank that gets a third of the time.
TEST(StragglerMinutes, IsNamed) {
  const auto log = workshop() / "straggler/log/rank-00000.log";
  const auto outcome = run_with(
      "straggler", 3, "'checkpoint.every=100000 steps' 'log.every=10 steps'", 10,
      "slow=$(cat $pid.1); (while kill -STOP $slow; do sleep 0.1; kill -CONT $slow; sleep 0.05; done) "
      "2>/dev/null & pulses=$!; " +
          wait_for(log, "times as long as the median") + "; kill $pulses; kill -CONT $slow; kill $(cat $pid.0)");
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
  expect_mentions(outcome, "rank 1 on ");
  // Told at the first look after 50 steps: those before it began to be slow may have been slow too.
  std::smatch told;
  ASSERT_TRUE(std::regex_search(outcome.output, told,
                                std::regex(" times as long as the median for the same work, for (\\d+) steps")))
      << outcome.output;
  EXPECT_GE(std::stoi(told[1]), 50);
  EXPECT_LT(std::stoi(told[1]), 60);
  int slow_lines = 0;
  for (const auto& line : lines(workshop() / "straggler/metrics.jsonl"))
    slow_lines += line["straggler"] > 1.33 && line["slowest_rank"] == 1;
  EXPECT_GE(slow_lines, 5);
}

}  // namespace
}  // namespace millrace::e2e
