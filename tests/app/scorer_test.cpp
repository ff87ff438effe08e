// What `millrace evaluate` finds out before it paints, and what is left when its last file cannot be written. In a
// world of one, on the networks and pictures of tests/golden/evaluate.
#include "evaluate/scorer.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <nlohmann/json.hpp>

#include "core/temp_dir.h"
#include "error_of.h"
#include "evaluate/evaluation.h"
#include "millrace/core/files.h"
#include "millrace/models/tensors.h"
#include "test_data.h"

namespace millrace {
namespace {

fs::path golden(const std::string& name) {
  return test::data_dir() / "evaluate" / name;
}

const Session& alone() {
  static World world;
  static const Session session{world, torch::kCPU, 1};
  return session;
}

TEST(Scorer, RefusesAReferenceOfAnotherWidth) {
  const test::TempDir dir;
  const auto file = dir / "reference.safetensors";
  EvaluateConfig config;
  config.metrics = {EvaluateConfig::Metric::fid, EvaluateConfig::Metric::kid};
  config.features = golden("plain.pt").string();
  config.reference = file.string();
  write_tensors(file, {{"features", torch::rand({4, 3})}});
  const auto error = test::error_of([&] { (void)Scorer(alone(), config); });
  EXPECT_EQ(error.exit(), Exit::usage);
  EXPECT_NE(std::string(error.what()).find("evaluate.reference has 3 features"), std::string::npos) << error.what();
  write_tensors(file, {{"features", torch::rand({4, 10})}});
  (void)Scorer(alone(), config);
}

TEST(FeaturesFile, IsTriedWithoutALeftover) {
  const test::TempDir dir;
  const auto refused = [](const fs::path& file) {
    const auto error = test::error_of([&] { check_features_file(file); });
    EXPECT_EQ(std::string(error.what()).find("evaluate.features_out: "), 0) << error.what();
    return error.exit();
  };
  EXPECT_EQ(refused(dir / "nowhere/features.safetensors"), Exit::io);
  EXPECT_EQ(refused(dir.path()), Exit::usage);
  check_features_file(dir / "features.safetensors");
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

struct FeaturesOut : testing::Test {
  FeaturesOut() {
    root.evaluate.metrics = {};
    root.evaluate.features = golden("plain.pt").string();
    root.evaluate.features_out = (dir / "away/features.safetensors").string();
  }

  test::TempDir dir;
  EvaluateRoot root;
  EvaluateJob job{EvaluateJob::Source::images, golden("images"), dir / "out"};
};

TEST_F(FeaturesOut, ThatCannotBeWrittenAreFoundBeforeAnythingIsScored) {
  EXPECT_EQ(test::error_of([&] { Evaluation(alone(), root, job); }).exit(), Exit::io);
}

TEST_F(FeaturesOut, MayLieInTheFolderOfTheScores) {
  root.evaluate.features_out = (job.out / "features.safetensors").string();
  Evaluation(alone(), root, job).score_images();
  EXPECT_EQ(read_tensors(*root.evaluate.features_out).at("features").size(0), 6);
}

TEST_F(FeaturesOut, ThatCannotBeWrittenInTheEndCostNoScores) {
  fs::create_directory(dir / "away");
  Evaluation evaluation(alone(), root, job);
  fs::remove(dir / "away");
  EXPECT_EQ(test::error_of([&] { evaluation.score_images(); }).exit(), Exit::io);
  const auto line = nlohmann::json::parse(read_file(job.out / "evaluation.jsonl"));
  EXPECT_EQ(line.at("images"), 6);
}

}  // namespace
}  // namespace millrace
