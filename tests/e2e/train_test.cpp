// The main job through the real binary: alone, with producers and trainers apart, killed and resumed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "download/server.h"
#include "e2e/runs.h"
#include "e2e/weights.h"

namespace millrace::e2e {
namespace {

// The reference that the others are compared with.
const std::string& one_rank() {
  static const std::string run = [] {
    expect_success(train("one", "'duration=12 steps'"));
    return std::string("one");
  }();
  return run;
}

// Its raw weights after so many steps, of which it has kept 4, 8 and 12.
const Weights& one_rank_at(int step) {
  static std::map<int, Weights> read;
  const auto [found, is_new] = read.try_emplace(step);
  if (is_new) {
    const auto out = workshop() / ("one-at-step-" + std::to_string(step));
    expect_success(millrace + " export --checkpoint " + checkpoint(one_rank(), step).string() + " --out " +
                   out.string() + " weights=raw");
    found->second = read_weights(out / "unet/diffusion_pytorch_model.safetensors");
  }
  return found->second;
}

// The ids of its first steps.
std::vector<nlohmann::json> first_ids(std::size_t steps) {
  auto ids = lines(workshop() / one_rank() / "ids.jsonl");
  ids.resize(steps);
  return ids;
}

TEST(Train, WritesWhatAUserLooksFor) {
  const auto run = workshop() / one_rank();
  for (const char* file :
       {"config.yaml", "metrics.jsonl", "ids.jsonl", "ledger.json", "DONE", "STATE", "log/rank-00000.log"})
    EXPECT_TRUE(fs::exists(run / file)) << file;
  EXPECT_NE(read(run / "log/rank-00000.log").find("small images by our own"), std::string::npos);
  const auto metrics = lines(run / "metrics.jsonl");
  ASSERT_EQ(metrics.size(), 12u);
  for (const char* key : {"step", "samples", "loss", "grad_norm", "lr", "images_per_second", "step_ms", "data_wait_ms",
                          "encode_images_per_second", "queue_fill", "skipped", "memory_gib", "time"})
    EXPECT_TRUE(metrics[0].contains(key)) << key;
  EXPECT_EQ(metrics[11]["samples"], 96);
  EXPECT_EQ(nlohmann::json::parse(read(run / "DONE"))["step"], 12);
  EXPECT_TRUE(fs::exists(run / "checkpoints/step-00000012/MANIFEST.json"));
}

// The four archives make eight stripes of twelve rows: twelve steps are one visit of all 96 images.
TEST(Train, EverySampleOncePerVisit) {
  const auto ids = lines(workshop() / one_rank() / "ids.jsonl");
  ASSERT_EQ(ids.size(), 12u);
  std::set<std::string> seen;
  for (const auto& line : ids) {
    ASSERT_EQ(line["ids"].size(), 8u);
    for (const auto& id : line["ids"]) EXPECT_TRUE(seen.insert(id.get<std::string>()).second) << id << " comes twice";
  }
  EXPECT_EQ(seen.size(), 96u);
}

// The first steps of a visit; validated runs and resumed ones take the whole of it.
TEST(Train, SameIdsAndWeightsOnAnyRanks) {
  const auto split = shell(mpirun(4) + train("two-plus-two", "'duration=4 steps' roles.producers=2"));
  ASSERT_EQ(split.exit_code, 0) << split.output;
  for (const char* figure : {"  trainers  ", " img/s, ", "  producers  ", "  balance  "})
    expect_mentions(split, figure);
  EXPECT_EQ(split.output.find(" of stripes "), std::string::npos) << split.output;
  for (const auto& [rank, work] : {std::pair{1, "trainer of stripes 4-7"}, {3, "producer of stripes 1 3 5 7"}}) {
    const auto log = read(workshop() / fmt::format("two-plus-two/log/rank-0000{}.log", rank));
    EXPECT_NE(log.find(fmt::format(" rank {} of 4 on ", rank)), std::string::npos) << log;
    EXPECT_NE(log.find(fmt::format(": {}, on ", work)), std::string::npos) << log;
  }

  expect_success(mpirun(3) + train("ddp", "'duration=4 steps' roles.producers=1 parallel.strategy=ddp"));
  const std::string hybrid = "'duration=4 steps' roles.producers=1 parallel.strategy=hybrid parallel.shard_size=2";
  expect_success(mpirun(5) + train("hybrid", hybrid));
  const std::string full = "'duration=4 steps' roles.producers=1 parallel.strategy=full_shard parallel.bucket_mb=0.02";
  expect_success(mpirun(4) + train("full", full));
  expect_success(mpirun(3) + train("full-again", full + " model.gradient_checkpointing=true"));
  for (const std::string run : {"two-plus-two", "ddp", "hybrid", "full", "full-again"}) {
    EXPECT_EQ(lines(workshop() / run / "ids.jsonl"), first_ids(4)) << run;
    EXPECT_LT(relative_difference(one_rank_at(4), read_weights(weights_of(run))), 1e-4) << run;
  }
}

// Phase 2: what phase 1 exported goes on at another size, here without learning anything.
TEST(Train, GoesOnAtTwiceTheSide) {
  const auto first = workshop() / "phase-1", second = workshop() / "phase-2";
  expect_success(millrace + " export --run " + (workshop() / one_rank()).string() + " --out " + first.string() +
                 " weights=raw");
  expect_success(mpirun(3) + train("twice-the-side",
                                   "'duration=1 steps' roles.producers=1 transform.resolution=64 optim.lr=0 "
                                   "model.unet.init=pretrained model.pipeline=" +
                                       first.string()));
  expect_success(millrace + " export --run " + (workshop() / "twice-the-side").string() + " --out " + second.string() +
                 " weights=raw");
  const auto weights = [](const fs::path& at) { return read_weights(at / "unet/diffusion_pytorch_model.safetensors"); };
  EXPECT_EQ(largest_difference(weights(first), weights(second)), 0.0);
  const auto latent_side = [](const fs::path& at) {
    return nlohmann::json::parse(read(at / "unet/config.json"))["sample_size"].get<int>();
  };
  EXPECT_EQ(latent_side(first), 8);
  EXPECT_EQ(latent_side(second), 16);
}

std::map<int, double> validation_losses(const std::string& run) {
  std::map<int, double> losses;
  for (const auto& line : lines(workshop() / run / "metrics.jsonl"))
    if (line.contains("validation_loss")) losses[line["step"]] = line["validation_loss"];
  return losses;
}

std::string validation() {
  return " 'duration=12 steps' 'validation.every=4 steps' validation.batches=2 data.validation.path=" +
         (workshop() / "shapes/00003.tar").string() + " ";
}

// The same training as one_rank(), validated.
const std::string& validated() {
  static const std::string run = [] {
    expect_success(train("validated", validation()));
    return std::string("validated");
  }();
  return run;
}

// All of a trainer's share, here; a run goes on with another one, and the choice is the same after a restart.
TEST(Train, ChoosesItsMicroBatch) {
  const auto start = mpirun(2) + train("auto", "'duration=2 steps' batch.micro=auto");
  const auto outcome = shell(start);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_mentions(outcome, "8 = 4 x 2 trainers x 1 accumulated; batch.micro=auto");
  expect_success(mpirun(2) + train("four", "'duration=2 steps' batch.micro=4"));
  EXPECT_EQ(largest_difference(read_weights(weights_of("auto")), read_weights(weights_of("four"))), 0.0);
  EXPECT_NE(read(workshop() / "auto/config.yaml").find("micro: auto"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(read(workshop() / "auto/environment.json"))["micro_batch"], 4);
  expect_success(mpirun(2) + train("auto", "'duration=3 steps' batch.micro=1"));
  const auto again = shell(mpirun(3) + train("auto", "'duration=4 steps' batch.micro=auto roles.producers=1"));
  ASSERT_EQ(again.exit_code, 0) << again.output;
  expect_mentions(again, "8 = 4 x 2 trainers x 1 accumulated; batch.micro=auto");
  EXPECT_EQ(lines(workshop() / "auto/ids.jsonl").size(), 4u);
}

TEST(Train, ValidationChangesNothing) {
  EXPECT_EQ(read(workshop() / validated() / "ids.jsonl"), read(workshop() / one_rank() / "ids.jsonl"));
  EXPECT_EQ(largest_difference(read_weights(weights_of(validated())), one_rank_at(12)), 0.0);
  const auto losses = validation_losses(validated());
  ASSERT_EQ(losses.size(), 3u);
  EXPECT_LT(losses.at(12), losses.at(4));
}

// So is the training of a whole visit.
TEST(Train, ValidationIsTheSameOnAnyRanks) {
  expect_success(mpirun(3) + train("validated-apart", validation() + "roles.producers=1 'log.every=5 steps'"));
  expect_success(mpirun(2) +
                 train("validated-both", validation() + "encode.cache=" + (workshop() / "val-cache").string()));
  const auto reference = validation_losses(validated());
  for (const std::string run : {"validated-apart", "validated-both"}) {
    const auto losses = validation_losses(run);
    ASSERT_EQ(losses.size(), reference.size()) << run;
    for (const auto& [step, loss] : reference)
      EXPECT_NEAR(losses.at(step), loss, 1e-4 * loss) << run << " step " << step;
    EXPECT_EQ(read(workshop() / run / "ids.jsonl"), read(workshop() / one_rank() / "ids.jsonl")) << run;
    EXPECT_LT(relative_difference(one_rank_at(12), read_weights(weights_of(run))), 1e-4) << run;
  }
}

TEST(Train, ValidationAsksTheSameEachTime) {
  const auto losses_of = [](const std::string& run, const std::string& settings) {
    expect_success(train(run, validation() + "'validation.every=1 steps' optim.lr=0 ema.enabled=false " +
                                  "model.unet.init=pretrained transform.flip=0.5 " + settings));
    return validation_losses(run);
  };
  const auto losses = losses_of("frozen", "'duration=3 steps' run.seed=7");
  ASSERT_EQ(losses.size(), 3u);
  EXPECT_EQ(losses.at(1), losses.at(3));
  EXPECT_EQ(lines(workshop() / "frozen/metrics.jsonl")[0]["validation_weights"], "raw");
  const auto of_another_seed = losses_of("frozen-too", "'duration=1 steps' run.seed=8");
  ASSERT_EQ(of_another_seed.size(), 1u);
  EXPECT_NEAR(of_another_seed.at(1), losses.at(1), 1e-6) << "runs of all seeds compare";
}

TEST(Train, KilledAndResumedIsBitEqual) {
  // Killed in step 7, long after the checkpoint of step 4 and before that of step 8.
  const auto run = workshop() / "killed";
  const auto killed = shell("env 'MILLRACE_INJECT=kill@0:7:*' " + std::string(MILLRACE_INJECT_BINARY) +
                            train("killed", "'duration=8 steps'").substr(millrace.size()));
  ASSERT_NE(killed.exit_code, 0) << killed.output;
  ASSERT_FALSE(fs::exists(run / "DONE"));
  expect_success(train("killed", "'duration=8 steps'"));
  EXPECT_EQ(lines(run / "ids.jsonl"), first_ids(8));
  EXPECT_EQ(largest_difference(read_weights(weights_of("killed")), one_rank_at(8)), 0.0);
}

TEST(Train, ResumesOnOtherRanks) {
  expect_success(train("moved", "'duration=4 steps'"));
  expect_success(mpirun(4) + train("moved", "'duration=12 steps' roles.producers=2"));
  EXPECT_EQ(read(workshop() / "moved/ids.jsonl"), read(workshop() / one_rank() / "ids.jsonl"));
  EXPECT_LT(relative_difference(read_weights(weights_of("moved")), one_rank_at(12)), 1e-4);
}

TEST(Train, ASignalSavesAndAsksToBeRequeued) {
  const auto run = workshop() / "signalled";
  const auto outcome =
      shell(signal_once(train("signalled", "'duration=100000 steps'"), "USR1", run / "metrics.jsonl", "step"));
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
  EXPECT_EQ(nlohmann::json::parse(read(run / "STATE"))["state"], "requeue");
}

TEST(Train, FallsBackToAnOlderCheckpoint) {
  const std::string often = "'checkpoint.every=1 steps' ";
  expect_success(train("damaged", often + "'duration=2 steps'"));
  const auto file = workshop() / "damaged/checkpoints/step-00000002/shard-00000-of-00001.safetensors";
  fs::resize_file(file, fs::file_size(file) - 1);
  const auto outcome = shell(train("damaged", often + "'duration=3 steps'"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("step-00000002"), std::string::npos) << outcome.output;
  EXPECT_EQ(lines(workshop() / "damaged/ids.jsonl"), first_ids(3));

  for (const auto& entry : fs::directory_iterator(workshop() / "damaged/checkpoints"))
    fs::remove(entry.path() / "MANIFEST.json");
  EXPECT_EQ(shell(train("damaged", often + "'duration=4 steps'")).exit_code, 74);
}

// With the settings that download names. Three of eight addresses are dead, which is more than data.max_bad_share.
TEST(Train, TakesDownloadedParquet) {
  const auto image = read(MILLRACE_TEST_DATA "/transform/gray.jpg");
  test::TestServer server([&](const std::string& path, test::Client& client) {
    path.starts_with("/image") ? client.answer(200, image) : client.answer(path == "/dead7" ? 500 : 404, "");
  });
  std::ofstream list(workshop() / "list.csv");
  list << "url,caption\n";
  for (int i = 0; i < 8; ++i) list << server.url(i < 5 ? "/image" : "/dead") << i << ",x\n";
  list.close();
  const auto outcome = shell(millrace + " download download.urls=" + (workshop() / "list.csv").string() +
                             " download.out=" + (workshop() / "images").string() +
                             " download.format=parquet download.columns.url=url download.columns.caption=caption "
                             "download.allow_networks=127.0.0.1/32");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("next    download.retry_failed=true asks again for the 1 rows"), std::string::npos);
  const std::string command = "next    millrace train ";
  const auto at = outcome.output.find(command);
  ASSERT_NE(at, std::string::npos) << outcome.output;
  const auto begin = at + command.size();
  const auto settings = outcome.output.substr(begin, outcome.output.find(" ...", begin) - begin);
  expect_success(train("downloaded", settings + " data.stripes=1 'duration=2 steps'"));
  const auto ledger = nlohmann::json::parse(read(workshop() / "downloaded/ledger.json"));
  EXPECT_EQ(ledger.at("accepted"), 5);
  EXPECT_EQ(ledger.at("rejected"), (nlohmann::json{{"filtered", 3}}));
}

TEST(Train, RecordsAStepThatCanBeReplayed) {
  expect_success(train("recorded", "'duration=2 steps' 'record.steps=[2]'"));
  const auto record = read_weights(workshop() / "recorded/records/step-00000002.safetensors");
  for (const char* name : {"latents", "text", "noise", "noisy", "target", "weight", "prediction", "loss", "grad_norm"})
    EXPECT_TRUE(record.contains(name)) << name;
  double loss = 0;
  const auto &prediction = record.at("prediction"), &target = record.at("target");
  for (std::size_t i = 0; i < prediction.size(); ++i)
    loss += std::pow(static_cast<double>(prediction[i]) - target[i], 2) / prediction.size();
  EXPECT_NEAR(loss, record.at("loss")[0], 1e-5);
  EXPECT_NEAR(lines(workshop() / "recorded/metrics.jsonl")[1]["loss"].get<double>(), loss, 1e-5);
}

}  // namespace
}  // namespace millrace::e2e
