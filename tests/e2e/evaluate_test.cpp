// Scores of pictures, of pipelines and of runs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <thread>

#include "e2e/runs.h"

namespace millrace::e2e {
namespace {

using Json = nlohmann::json;

fs::path golden(const std::string& name) {
  return fs::path(MILLRACE_TEST_DATA) / "evaluate" / name;
}

std::string prompts() {
  static const auto file = [] {
    const auto path = workshop() / "captions.jsonl";
    std::ofstream out(path);
    for (int n = 0; n < 7; ++n) out << Json{{"caption", fmt::format("picture {} of a \"boat\"", n)}} << "\n";
    return path;
  }();
  return file.string();
}

// Small networks and pictures of the golden folder; units of three of seven pictures, which no number of ranks shares
// evenly.
std::string measures() {
  return " evaluate.features=" + golden("inception.pt").string() + " evaluate.reference=" + golden("images").string() +
         " evaluate.clip=" + golden("clip").string() + " evaluate.prompts=" + prompts() +
         " evaluate.batch_size=3 generate.steps=2 generate.sampler=ddim";
}

std::vector<Json> scores_in(const fs::path& folder) {
  return lines(folder / "evaluation.jsonl");
}

std::string at(const std::string& name) {
  return (workshop() / name).string();
}

const std::string evaluate = millrace + " evaluate run.device=cpu ";

TEST(Evaluate, ImagesAgainstThePythonStack) {
  const auto expected = Json::parse(std::ifstream(golden("expected.json")));
  std::ofstream captions(at("six.jsonl"));
  for (const auto& caption : expected["captions"]) captions << Json{{"prompt", caption}} << "\n";
  captions.close();
  for (const int ranks : {1, 3}) {
    const auto out = at("images-" + std::to_string(ranks));
    expect_success(mpirun(ranks) + evaluate + "--images " + golden("images").string() + " --out " + out + measures() +
                   " evaluate.prompts=" + at("six.jsonl") + " evaluate.reference=" + golden("statistics.npz").string() +
                   " 'evaluate.metrics=[fid, clip]' evaluate.batch_size=4");
    const auto scores = scores_in(out);
    ASSERT_EQ(scores.size(), 1u);
    EXPECT_EQ(scores[0]["images"], 6);
    EXPECT_NEAR(scores[0]["fid"].get<double>(), 0, 1e-5);  // the statistics are of these pictures
    double mean = 0;
    for (const auto& score : expected["clip"]) mean += score.get<double>() / 6;
    EXPECT_NEAR(scores[0]["clip_score"].get<double>(), mean, 1e-4) << ranks;
    EXPECT_FALSE(scores[0].contains("kid"));
  }
}

TEST(Evaluate, NumbersOfAPipelineDoNotDependOnTheRanks) {
  std::optional<Json> first;
  for (const int ranks : {1, 3}) {
    const auto out = at("pipeline-" + std::to_string(ranks));
    // One thread each: ranks that share the machine get fewer of them, and sums would be rounded otherwise.
    expect_success(mpirun(ranks) + evaluate + "--pipeline " + at("tiny") + " --out " + out + measures() +
                   " 'evaluate.guidance_scales=[1, 4]' threads=1");
    const auto scores = scores_in(out);
    ASSERT_EQ(scores.size(), 2u);
    EXPECT_TRUE(fs::exists(fs::path(out) / "evaluation/pipeline-scale-4.png"));
    for (const char* key : {"fid", "kid", "kid_std", "clip_score", "clip_score_std"})
      EXPECT_TRUE(scores[1][key].is_number()) << key;
    EXPECT_EQ(scores[1]["reference_images"], 6);
    EXPECT_EQ(scores[1]["protocol"]["reference_crop"], "none");
    EXPECT_NE(scores[0]["fid"], scores[1]["fid"]);
    EXPECT_EQ(scores[0]["images"], 7);
    auto numbers = Json::array();
    for (const auto& line : scores) numbers.push_back({line["fid"], line["kid"], line["clip_score"]});
    if (!first) first = numbers;
    EXPECT_EQ(numbers, *first) << ranks;
  }
}

static std::string validated() {
  return " data.validation.path=" + at("shapes") + " validation.batches=2 validation.every='2 steps'";
}

// The loss is the one that training logged, whoever measures it.
// The pictures that generate leaves, without its grid, are those that a pipeline's scores are of.
TEST(Evaluate, TheFolderOfGenerateScoresAsItsPipeline) {
  const std::string sampling =
      " generate.steps=2 generate.sampler=ddim generate.guidance_scale=4 generate.negative_prompt=blurry threads=1 ";
  std::ofstream list(at("captions.txt"));
  for (const auto& line : lines(prompts())) list << line["caption"].get<std::string>() << "\n";
  list.close();
  expect_success(millrace + " generate run.device=cpu --pipeline " + at("tiny") + " --prompts " + at("captions.txt") +
                 " --out " + at("painted") + sampling + "generate.batch_size=3 generate.seed=5");
  ASSERT_TRUE(fs::exists(workshop() / "painted/grid.png"));
  const std::string seed = "evaluate.seed=5 ";  // of pictures, and of KID's subsets
  expect_success(evaluate + "--images " + at("painted") + " --out " + at("of-folder") + measures() + sampling + seed);
  expect_success(evaluate + "--pipeline " + at("tiny") + " --out " + at("of-pipeline") + measures() + sampling + seed +
                 "'evaluate.guidance_scales=[4]'");
  const auto folder = scores_in(at("of-folder")), pipeline = scores_in(at("of-pipeline"));
  EXPECT_EQ(folder.at(0)["images"], 7);
  for (const auto* score : {"fid", "kid", "clip_score"})
    EXPECT_NEAR(folder.at(0)[score].get<double>(), pipeline.at(0)[score].get<double>(), 1e-9) << score;
  // Its own list says what each was painted from.
  expect_success(evaluate + "--images " + at("painted") + " --out " + at("of-list") + measures() +
                 " 'evaluate.metrics=[clip]' threads=1 evaluate.prompts=" + at("painted/images.jsonl"));
  EXPECT_EQ(scores_in(at("of-list")).at(0)["clip_score"], folder.at(0)["clip_score"]);
}

// Numbers would come all the same.
TEST(Evaluate, WarnsOfCaptionsThatMayBeOthers) {
  fs::create_directories(at("counted"));
  for (const char* name : {"0.png", "2.png", "10.png"})
    fs::copy(golden("images/1.png"), fs::path(at("counted")) / name);
  std::ofstream list(at("rewritten.jsonl"));
  for (int n = 0; n < 4; ++n) list << Json{{"caption", "a boat"}, {"prompt", "a red boat"}, {"seed", n}} << "\n";
  list.close();
  const auto of = [](const std::string& what) {
    return shell(evaluate + what + measures() + " 'evaluate.metrics=[clip]' --out " + at("warned") +
                 " evaluate.prompts=" + at("rewritten.jsonl"));
  };
  const auto counted = of("--images " + at("counted"));
  EXPECT_EQ(counted.exit_code, 0) << counted.output;
  for (const char* warning : {"rewritten.jsonl: its prompt count for nothing", "holds 4 captions for 3 pictures",
                              "in which 2.png comes behind larger numbers"})
    expect_mentions(counted, warning);
  const auto painted = of("--pipeline " + at("tiny"));
  EXPECT_EQ(painted.exit_code, 0) << painted.output;
  for (const char* warning :
       {"its prompt, seed count for nothing", "holds 4 captions, fewer than evaluate.count = 10000"})
    expect_mentions(painted, warning);
}

// Also by a sampler whose defaults are others than those of the file's class, in a file that leaves the keys out, and
// where the run has learned to predict something else than the folder's U-Net.
TEST(Evaluate, ARunScoresAsItsExport) {
  fs::copy(workshop() / "tiny", workshop() / "sparse", fs::copy_options::recursive);
  const auto scheduler = workshop() / "sparse/scheduler/scheduler_config.json";
  auto config = Json::parse(read(scheduler));
  config.erase("timestep_spacing");
  std::ofstream(scheduler) << config;
  expect_success(
      train("scored", "'duration=2 steps' objective.prediction=v_prediction model.pipeline=" + at("sparse")));
  expect_success(millrace + " export --run " + at("scored") + " --out " + at("scored-pipeline"));
  const std::string sampling = " generate.steps=3 generate.sampler=euler threads=1";
  expect_success(evaluate + "--run " + at("scored") + " --out " + at("of-run") + measures() + sampling);
  expect_success(evaluate + "--pipeline " + at("scored-pipeline") + " --out " + at("of-export") + measures() +
                 sampling);
  const auto run = scores_in(at("of-run")), exported = scores_in(at("of-export"));
  for (const auto* score : {"fid", "kid", "clip_score"})
    EXPECT_NEAR(run.at(0)[score].get<double>(), exported.at(0)[score].get<double>(), 1e-9) << score;
  const auto nothing =
      shell(evaluate + "--run " + at("scored") + " --out " + at("of-nothing") + " 'evaluate.metrics=[]'");
  EXPECT_EQ(nothing.exit_code, 0) << nothing.output;
  expect_mentions(nothing, "has no data.validation: there is nothing to measure");
}

TEST(Evaluate, RunsTellTheirValidationLoss) {
  expect_success(train("run", "'duration=4 steps' checkpoint.every='2 steps'" + validated()));
  const auto logged = lines(workshop() / "run/metrics.jsonl");
  for (const int ranks : {1, 3}) {
    const auto out = at("run-scores-" + std::to_string(ranks));
    const auto command = mpirun(ranks) + evaluate + "--run " + at("run") + " --out " + out + " 'evaluate.metrics=[]'";
    expect_success(command);
    const auto scores = scores_in(out);
    ASSERT_EQ(scores.size(), 1u);
    EXPECT_EQ(scores[0]["step"], 4);
    ASSERT_TRUE(scores[0].contains("loss"));
    int buckets = 0;
    EXPECT_EQ(scores[0]["loss"].size(), 10u);
    for (const auto& [bucket, loss] : scores[0]["loss"].items()) {
      const auto& expected = logged.back()["validation_loss_by_timestep"][bucket];
      ASSERT_EQ(loss.is_null(), expected.is_null()) << bucket << ": no sample has such a timestep";
      if (loss.is_null()) continue;
      ++buckets;
      EXPECT_NEAR(loss.get<double>(), expected.get<double>(), 1e-5) << bucket;
    }
    EXPECT_GE(buckets, 5);
    EXPECT_FALSE(scores[0].contains("images"));
    const auto again = shell(command);  // nothing to do
    expect_mentions(again, "step 4 is scored already");
    EXPECT_EQ(scores_in(out), scores);
  }
}

// A checkpoint of one's choice, raw weights beside the EMA: each has lines of its own, and none twice.
TEST(Evaluate, RawWeightsAndOlderCheckpointsHaveLinesOfTheirOwn) {
  expect_success(train("chosen", "'duration=4 steps' checkpoint.every='2 steps'" + validated()));
  const auto logged = lines(workshop() / "chosen/metrics.jsonl").back();
  const auto run = evaluate + "--run " + at("chosen") + " 'evaluate.metrics=[]'";
  for (int n = 0; n < 2; ++n)
    for (const char* weights : {"", " evaluate.weights=raw", " evaluate.weights=ema"}) expect_success(run + weights);
  auto scores = scores_in(at("chosen"));
  ASSERT_EQ(scores.size(), 2u);
  EXPECT_EQ(scores[0]["weights"], "ema");
  EXPECT_NEAR(scores[0]["loss_mean"].get<double>(), logged["validation_loss"].get<double>(), 1e-5);
  EXPECT_EQ(scores[1]["weights"], "raw");
  EXPECT_EQ(scores[1]["protocol"], scores[0]["protocol"]) << "they compare";
  EXPECT_NEAR(scores[1]["loss_mean"].get<double>(), logged["validation_loss_raw"].get<double>(), 1e-5);
  expect_mentions(shell(run + " evaluate.weights=raw"), "step 4 (raw weights) is scored already");
  const auto older = evaluate + "--checkpoint " + checkpoint("chosen", 2).string() + " 'evaluate.metrics=[]'";
  for (int n = 0; n < 2; ++n) expect_success(older);
  scores = scores_in(at("chosen"));
  ASSERT_EQ(scores.size(), 3u);
  EXPECT_EQ(scores[2]["step"], 2);
  expect_success(evaluate + "--run " + at("chosen") + measures() +
                 " 'evaluate.metrics=[fid]' evaluate.count=2 evaluate.weights=raw --out " + at("chosen-raw"));
  EXPECT_TRUE(fs::exists(at("chosen-raw/evaluation/step-00000004-raw-scale-7.5.png")));
  const auto following = shell(older + " --follow");
  EXPECT_EQ(following.exit_code, 2) << following.output;
  const auto nowhere = shell(evaluate + "--checkpoint " + at("nobody/checkpoints/none") + " 'evaluate.metrics=[]'");
  EXPECT_EQ(nowhere.exit_code, 74) << nowhere.output;
  EXPECT_FALSE(fs::exists(at("nobody")));
  std::ofstream(at("in-the-way")) << "a file";
  const auto closed = shell(run + " --out " + at("in-the-way"));
  EXPECT_EQ(closed.exit_code, 74) << closed.output;
  expect_mentions(closed, "cannot write scores to " + at("in-the-way"));
  expect_mentions(closed, "say --out FOLDER");
  const auto pipeline =
      shell(evaluate + "--pipeline " + at("tiny") + " --out " + at("refused") + measures() + " evaluate.weights=raw");
  EXPECT_EQ(pipeline.exit_code, 2) << pipeline.output;
  expect_mentions(pipeline, "evaluate.weights: ");
  expect_success(train("no-ema", "'duration=2 steps' ema.enabled=false" + validated()));
  const auto without = evaluate + "--run " + at("no-ema") + " 'evaluate.metrics=[]'";
  const auto refused = shell(without + " evaluate.weights=ema");
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  expect_mentions(refused, "has no EMA");
  EXPECT_FALSE(fs::exists(at("no-ema/evaluation"))) << "refused at the start";
  for (const char* weights : {"", " evaluate.weights=raw"}) expect_success(without + weights);
  ASSERT_EQ(scores_in(at("no-ema")).size(), 1u) << "there is one set of weights";
  EXPECT_FALSE(scores_in(at("no-ema")).at(0).contains("weights"));
}

// Captions become the ids that the run was trained with; an export needs to be told.
TEST(Evaluate, ARunIsPaintedWithItsOwnTokenizer) {
  const std::string tokenizer = " tokenizer.pad_id=5";
  expect_success(train("padded", "'duration=2 steps'" + tokenizer + validated()));
  const auto exported = shell(millrace + " export --run " + at("padded") + " --out " + at("padded-pipeline"));
  ASSERT_EQ(exported.exit_code, 0) << exported.output;
  expect_mentions(exported, "the run was trained with tokenizer.pad_id=5, and other programs");
  const auto score_of = [](const std::string& what, const std::string& settings, const std::string& out) {
    expect_success(evaluate + what + " --out " + at(out) + measures() + " 'evaluate.metrics=[fid]' threads=1" +
                   settings);
    return scores_in(at(out)).at(0);
  };
  const auto run = score_of("--run " + at("padded"), "", "of-padded");
  const auto told = score_of("--pipeline " + at("padded-pipeline"), tokenizer, "of-padded-told");
  const auto untold = score_of("--pipeline " + at("padded-pipeline"), "", "of-padded-untold");
  EXPECT_NEAR(run["fid"].get<double>(), told["fid"].get<double>(), 1e-9);
  EXPECT_NE(run["fid"], untold["fid"]);
  EXPECT_EQ(run["protocol"]["tokenizer"], (Json{{"pad_id", "5"}}));
  EXPECT_FALSE(untold["protocol"].contains("tokenizer"));
  // What is not chosen stands there as it came out.
  EXPECT_EQ(run["protocol"]["size"], (Json{32, 32}));
  EXPECT_EQ(run["protocol"]["sampler"], "DDIMScheduler");
  EXPECT_EQ(run["protocol"]["dtype"], "float32");
  EXPECT_EQ(run["protocol"]["loss"]["samples"], 16);
  const auto other = score_of("--run " + at("padded"), " tokenizer.mode=hf", "of-padded-as-told");
  EXPECT_NEAR(other["fid"].get<double>(), untold["fid"].get<double>(), 1e-9);
}

TEST(Evaluate, TheLossIsInTheRunsDtypeUnlessToldOtherwise) {
  expect_success(train("half", "'duration=2 steps' model.dtype=bfloat16" + validated()));
  const auto logged = lines(workshop() / "half/metrics.jsonl").back()["validation_loss"].get<double>();
  const auto loss_of = [](const std::string& settings, const std::string& out) {
    expect_success(evaluate + "--run " + at("half") + " --out " + at(out) + settings);
    const auto line = scores_in(at(out)).at(0);
    return std::pair(line["loss_mean"].get<double>(), line["protocol"]["loss"]["dtype"].get<std::string>());
  };
  const auto own = loss_of(" 'evaluate.metrics=[]'", "of-half");
  const auto told = loss_of(" 'evaluate.metrics=[]' model.dtype=float32", "of-half-told");
  const auto beside = loss_of(measures() + " 'evaluate.metrics=[fid]' evaluate.count=2", "of-half-pictures");
  EXPECT_NEAR(own.first, logged, 1e-5);
  EXPECT_GT(std::abs(told.first - logged), 2 * std::abs(own.first - logged));
  EXPECT_EQ(beside.first, own.first) << "pictures are painted in float32";
  EXPECT_EQ(own.second, "bfloat16");
  EXPECT_EQ(beside.second, "bfloat16");
  EXPECT_EQ(told.second, "float32");
  EXPECT_EQ(scores_in(at("of-half-pictures")).at(0)["protocol"]["dtype"], "float32");
}

// In bfloat16 the decoder's last numbers are half a level apart.
TEST(Evaluate, TheDecoderIsOfFloat32) {
  const std::string settings = " generate.steps=2 generate.sampler=ddim generate.guidance_scale=4 threads=1";
  std::ofstream list(at("half.txt"));
  for (const auto& line : lines(prompts())) list << line["caption"].get<std::string>() << "\n";
  list.close();
  const auto painted_in = [&](const std::string& dtype) {
    const auto out = at("painted-in-" + dtype);
    expect_success(millrace + " generate run.device=cpu --pipeline " + at("tiny") + " --prompts " + at("half.txt") +
                   " --out " + out + settings + " generate.batch_size=3 model.dtype=" + dtype);
    return out;
  };
  const auto score_of = [&](const std::string& what, const std::string& out) {
    expect_success(evaluate + what + " --out " + at(out) + measures() + settings +
                   " 'evaluate.metrics=[fid]' 'evaluate.guidance_scales=[4]' model.dtype=bfloat16");
    return scores_in(at(out)).at(0);
  };
  const auto pipeline = score_of("--pipeline " + at("tiny"), "of-half-pipeline");
  const auto folder = score_of("--images " + painted_in("bfloat16"), "of-half-folder");
  EXPECT_EQ(pipeline["protocol"]["dtype"], "bfloat16");
  EXPECT_NE(pipeline["fid"], folder["fid"]);
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Started before there is a run; killed and told to stop in the midst of painting, started again each time. The file
// alone would not show what was scored twice, so what all the starts said is put together.
TEST(Evaluate, FollowScoresEachCheckpointOnceOverItsRestarts) {
  const auto command = evaluate + "--run " + at("followed") + " --follow --out " + at("followed") + measures() +
                       " 'evaluate.metrics=[fid]' evaluate.count=7 generate.steps=30";
  std::string said;
  std::thread follower([&] {
    for (const auto& [signal, step] : {std::pair{"KILL", 2}, {"TERM", 4}, {"KILL", 6}}) {
      // It stands still before the picture of the first units.
      const auto outcome =
          shell(fmt::format("(exec env 'MILLRACE_INJECT=stop@*:*:rename=evaluation/step-{:08d}-scale-7.5.png' {}) & "
                            "pid=$!; {}; kill -{} $pid; kill -CONT $pid; wait $pid",
                            step, MILLRACE_INJECT_BINARY + command.substr(millrace.size()),
                            wait_for("/proc/$pid/status", "State:.T"), signal));
      EXPECT_EQ(outcome.exit_code, std::string(signal) == "TERM" ? 75 : 137) << outcome.output;
      for (const auto& line : step > 2 ? scores_in(at("followed")) : std::vector<Json>())
        EXPECT_LT(line["step"], step) << "it was done too early to tell";
      EXPECT_TRUE(step > 2 || !fs::exists(at("followed/evaluation.jsonl"))) << "it was done too early to tell";
      said += outcome.output;
    }
    const auto last = shell(command);
    EXPECT_EQ(last.exit_code, 0) << last.output;
    said += last.output;
  });
  expect_success(train("followed", "'duration=8 steps' checkpoint.every='2 steps' checkpoint.keep=5" + validated()));
  follower.join();
  std::vector<int> steps;
  for (const auto& line : scores_in(at("followed"))) {
    steps.push_back(line["step"]);
    EXPECT_EQ(count_of(said, fmt::format("step {}, scale 7.5  FID ", steps.back())), 1) << said;
    EXPECT_TRUE(line.contains("loss"));
    EXPECT_EQ(line["guidance_scale"], 7.5);
  }
  EXPECT_EQ(steps, (std::vector{2, 4, 6, 8}));
  EXPECT_EQ(count_of(said, "  FID "), 4) << said;
}

// What an older checkpoint was trained with may be gone.
TEST(Evaluate, FollowGoesOnBehindCheckpointsWhoseDataAreGone) {
  for (const char* name : {"held-out-1", "held-out-2"}) fs::copy(at("shapes"), at(name), fs::copy_options::recursive);
  const auto until = [](int steps, const std::string& held_out) {
    expect_success(train("changed", fmt::format("'duration={} steps' checkpoint.every='2 steps' validation.batches=2 "
                                                "validation.every='2 steps' data.validation.path={}",
                                                steps, at(held_out))));
  };
  until(2, "held-out-1");
  until(4, "held-out-2");
  fs::remove_all(at("held-out-1"));
  const auto command = evaluate + "--run " + at("changed") + " --follow 'evaluate.metrics=[]'";
  const auto outcome = shell(command);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_mentions(outcome, "step-00000002 is passed over: ");
  const auto scores = scores_in(at("changed"));
  ASSERT_EQ(scores.size(), 1u);
  EXPECT_EQ(scores[0]["step"], 4);
  fs::remove_all(at("held-out-2"));
  fs::remove(at("changed/evaluation.jsonl"));
  EXPECT_NE(shell(command).exit_code, 0) << "none is left to score";
}

// Nobody has to wait a day for a run that has failed. Its checkpoints are scored first.
TEST(Evaluate, FollowEndsSoonAfterARunThatHasFailed) {
  expect_success(train("failing", "'duration=2 steps' checkpoint.every='2 steps'" + validated()));
  fs::remove(at("failing/DONE"));
  std::ofstream(at("failing/STATE")) << "{\"state\": \"failed\",\n\"exit\": 78}\n";
  const auto command = evaluate + "--run " + at("failing") + " --follow 'evaluate.metrics=[]' evaluate.patience=";
  const auto outcome = shell(command + "'100 s'");
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  expect_mentions(outcome, "failing has failed");
  EXPECT_EQ(scores_in(at("failing")).size(), 1u);
  std::ofstream(at("failing/STATE")) << "{\"state\": \"running\"}\n";  // a person has started it again; it was killed
  expect_mentions(shell(command + "'1 s'"), "failing has made no new checkpoint for ");
}

TEST(Evaluate, PresetsAreDefaultsThatYourOwnSettingsReplace) {
  const auto config_of = [](const std::string& settings) {
    const auto outcome = shell(evaluate + "--pipeline " + at("tiny") + " --out " + at("preset") + measures() +
                               " --print-config=json " + settings + " 2>/dev/null");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return Json::parse(outcome.output);
  };
  const auto mlperf = config_of("evaluate.preset=mlperf");
  EXPECT_EQ(mlperf["evaluate"]["metrics"], (Json{"fid", "clip"}));
  EXPECT_EQ(mlperf["evaluate"]["count"], 30000);
  EXPECT_EQ(mlperf["evaluate"]["guidance_scales"], (Json{8.0}));
  EXPECT_EQ(mlperf["generate"]["height"], 512);
  EXPECT_EQ(mlperf["generate"]["width"], 512);
  EXPECT_EQ(mlperf["generate"]["steps"], 2) << "of measures()";
  const auto mosaic = config_of("evaluate.preset=mosaic evaluate.count=50");
  EXPECT_EQ(mosaic["evaluate"]["metrics"], (Json{"fid", "kid", "clip"}));
  EXPECT_EQ(mosaic["evaluate"]["count"], 50);
  EXPECT_EQ(mosaic["evaluate"]["guidance_scales"], (Json{1., 2., 3., 4., 5., 6., 7., 8., 9.}));
  EXPECT_EQ(mosaic["generate"]["sampler"], "ddim");
  EXPECT_EQ(mosaic["evaluate"]["reference_crop"], "center");
  EXPECT_EQ(mlperf["evaluate"]["reference_crop"], "none");
  auto custom = config_of("evaluate.preset=custom");
  custom["evaluate"]["preset"] = nullptr;
  EXPECT_EQ(custom, config_of(""));

  const auto out = at("preset");
  expect_success(evaluate + "--pipeline " + at("tiny") + " --out " + out + measures() +
                 " evaluate.preset=mlperf evaluate.count=2 generate.height=32 generate.width=32");
  const auto line = scores_in(out).at(0);
  EXPECT_EQ(line["guidance_scale"], 8);
  EXPECT_EQ(line["images"], 2);
  EXPECT_EQ(line["protocol"]["preset"], "mlperf");
  EXPECT_TRUE(line.contains("fid") && line.contains("clip_score") && !line.contains("kid"));
}

// A reference that was written once gives what its pictures give.
TEST(Evaluate, FeaturesThatWereWrittenAreAReference) {
  const auto file = at("features.safetensors");
  expect_success(evaluate + "--images " + golden("images").string() + measures() + " --out " + at("features") +
                 " 'evaluate.metrics=[]' evaluate.features_out=" + file);
  const auto others = at("others");  // another set than the reference
  fs::create_directories(others);
  for (const char* name : {"0.png", "2.png", "5.png"}) fs::copy(golden("images") / name, fs::path(others) / name);
  Json from_pictures, from_features;
  for (auto& [scores, reference] :
       {std::pair<Json&, std::string>{from_pictures, golden("images").string()}, {from_features, file}}) {
    const auto out = at("against-" + fs::path(reference).stem().string());
    expect_success(evaluate + "--images " + others + measures() + " 'evaluate.metrics=[fid, kid]' --out " + out +
                   " evaluate.reference=" + reference);
    scores = scores_in(out).at(0);
  }
  EXPECT_GT(from_pictures["fid"].get<double>(), 1e-3) << "the same set has less than 1e-5";
  EXPECT_EQ(from_features["fid"], from_pictures["fid"]);
  EXPECT_EQ(from_features["kid"], from_pictures["kid"]);
  // One file holds one set of pictures.
  const auto sweep = shell(evaluate + "--pipeline " + at("tiny") + " --out " + at("refused") + measures() +
                           " 'evaluate.guidance_scales=[1, 2]' evaluate.features_out=" + at("other.safetensors"));
  EXPECT_EQ(sweep.exit_code, 2);
  expect_mentions(sweep, "evaluate.features_out: ");
}

// The page of a sweep, also of a pipeline, which has no step; and of a run only the scales that are new are painted.
TEST(Evaluate, GuidanceScalesMakeASweep) {
  const auto sweep = " 'evaluate.metrics=[fid, clip]' evaluate.count=4 ";
  expect_success(evaluate + "--pipeline " + at("tiny") + " --out " + at("sweep") + measures() + sweep +
                 "'evaluate.guidance_scales=[1, 4, 2]'");
  const auto page = read(workshop() / "sweep/sweep.html");
  EXPECT_NE(page.find("FID over CLIP score"), page.npos);
  const auto scores = scores_in(at("sweep"));
  ASSERT_EQ(scores.size(), 3u);
  for (const auto& line : scores) {
    EXPECT_NE(page.find(fmt::format(">{:.5g}<", line["fid"].get<double>())), page.npos) << line;
    EXPECT_NE(page.find(fmt::format(">{:.5g}<", line["clip_score"].get<double>())), page.npos) << line;
  }
  expect_success(train("swept", "'duration=2 steps' checkpoint.every='2 steps'"));
  const auto run = evaluate + "--run " + at("swept") + measures() + sweep;
  expect_success(run + "evaluate.guidance_scales=[4]");
  EXPECT_FALSE(fs::exists(at("swept/sweep.html"))) << "of one scale";
  const auto more = shell(run + "'evaluate.guidance_scales=[1, 4]'");
  ASSERT_EQ(more.exit_code, 0) << more.output;
  expect_mentions(more, "step 2, scale 1  FID");
  EXPECT_EQ(more.output.find("scale 4  FID"), more.output.npos) << more.output;
  EXPECT_TRUE(fs::exists(at("swept/sweep.html")));
  EXPECT_EQ(scores_in(at("swept")).size(), 2u);
}

TEST(Evaluate, OnePictureHasAClipScoreAndNoDistance) {
  fs::create_directories(at("one"));
  fs::copy(golden("images/0.png"), at("one/0.png"));
  std::ofstream(at("one.txt")) << "a picture\n";
  const auto of = [](const std::string& what, const std::string& metrics) {
    return shell(evaluate + what + measures() + " evaluate.prompts=" + at("one.txt") + " 'evaluate.metrics=" + metrics +
                 "' --out " + at("one-out"));
  };
  for (const auto& what : {"--images " + at("one"), "--pipeline " + at("tiny")}) {
    EXPECT_EQ(of(what, "[clip]").exit_code, 0) << what;
    const auto distance = of(what, "[fid]");
    EXPECT_EQ(distance.exit_code, 2) << distance.output;
    expect_mentions(distance, "FID and KID need two pictures");
  }
}

TEST(Evaluate, SaysWhatIsMissing) {
  const auto bare = shell(evaluate + "--images " + golden("images").string() + " --out " + at("bare"));
  EXPECT_EQ(bare.exit_code, 2);
  for (const char* key : {"evaluate.features: ", "evaluate.reference: ", "evaluate.clip: ", "evaluate.prompts: "})
    expect_mentions(bare, key);
  for (const char* remedy :
       {"check_download_inception()", "torch.jit.trace(", "hf download openai/clip-vit-large-patch14"})
    expect_mentions(bare, remedy);
  EXPECT_FALSE(fs::exists(at("bare")));
  const auto kid = shell(evaluate + "--images " + golden("images").string() + " --out " + at("bare") + measures() +
                         " evaluate.reference=" + golden("statistics.npz").string());
  EXPECT_EQ(kid.exit_code, 2);
  expect_mentions(kid, "evaluate.reference: KID needs features");
  const auto legacy = shell(evaluate + "--images " + golden("images").string() + " --out " + at("bare") + measures() +
                            " evaluate.features=" + golden("plain.pt").string() + " evaluate.resize=legacy");
  EXPECT_EQ(legacy.exit_code, 2) << legacy.output;
  expect_mentions(legacy, "evaluate.resize: ");
  const auto none = shell(evaluate + "--run " + at("nowhere") + " 'evaluate.metrics=[]'");
  EXPECT_EQ(none.exit_code, 74) << none.output;
  fs::create_directories(at("broken"));
  fs::copy(golden("images/0.png"), at("broken/0.png"));
  std::ofstream(at("broken/1.png")) << "no picture";
  const auto broken = shell(mpirun(2) + evaluate + "--images " + at("broken") + " --out " + at("broken-out") +
                            measures() + " 'evaluate.metrics=[fid]' evaluate.batch_size=1");
  EXPECT_EQ(broken.exit_code, 74) << broken.output;
  expect_mentions(broken, "broken/1.png");
}

}  // namespace
}  // namespace millrace::e2e
