// Scores of pictures, of pipelines and of runs.
#include <fmt/format.h>
#include <gtest/gtest.h>

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
  for (const int ranks : {1, 2, 3}) {
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
  for (const int ranks : {1, 2, 3}) {
    const auto out = at("pipeline-" + std::to_string(ranks));
    // One thread each: ranks that share the machine get fewer of them, and sums would be rounded otherwise.
    expect_success(mpirun(ranks) + evaluate + "--pipeline " + at("tiny") + " --out " + out + measures() +
                   " 'evaluate.guidance_scales=[1, 4]' threads=1");
    const auto scores = scores_in(out);
    ASSERT_EQ(scores.size(), 2u);
    EXPECT_TRUE(fs::exists(fs::path(out) / "evaluation/pipeline-scale-4.png"));
    for (const char* key : {"fid", "kid", "kid_std", "clip_score"}) EXPECT_TRUE(scores[1][key].is_number()) << key;
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
    for (const auto& [bucket, loss] : scores[0]["loss"].items()) {
      ++buckets;
      EXPECT_NEAR(loss.get<double>(), logged.back()["validation_loss_by_timestep"][bucket].get<double>(), 1e-5)
          << bucket;
    }
    EXPECT_GE(buckets, 5);
    EXPECT_FALSE(scores[0].contains("images"));
    const auto again = shell(command);  // nothing to do
    expect_mentions(again, "step 4 is scored already");
    EXPECT_EQ(scores_in(out), scores);
  }
}

TEST(Evaluate, FollowScoresEachCheckpointOnce) {
  const auto command = evaluate + "--run " + at("followed") + " --follow --out " + at("followed") + measures() +
                       " 'evaluate.metrics=[fid]' evaluate.count=4";
  // Before there is a run; killed after the first score, started again.
  std::thread follower([&] {
    const auto killed =
        shell(signal_once("timeout -s KILL 100 " + command, "KILL", workshop() / "followed/evaluation.jsonl", "step"));
    EXPECT_NE(killed.exit_code, 0) << killed.output;
    expect_success("timeout 200 " + command);
  });
  expect_success(train("followed", "'duration=6 steps' checkpoint.every='2 steps' checkpoint.keep=5" + validated()));
  follower.join();
  std::vector<int> steps;
  for (const auto& line : scores_in(at("followed"))) {
    steps.push_back(line["step"]);
    EXPECT_TRUE(line.contains("loss"));
    EXPECT_EQ(line["guidance_scale"], 7.5);
  }
  EXPECT_EQ(steps, (std::vector{2, 4, 6}));
}

TEST(Evaluate, SaysWhatIsMissing) {
  const auto bare = shell(evaluate + "--images " + golden("images").string() + " --out " + at("bare"));
  EXPECT_EQ(bare.exit_code, 2);
  for (const char* key : {"evaluate.features: ", "evaluate.reference: ", "evaluate.clip: ", "evaluate.prompts: "})
    expect_mentions(bare, key);
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
