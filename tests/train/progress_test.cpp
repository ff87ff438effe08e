#include <gmock/gmock.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/temp_dir.h"
#include "millrace/core/files.h"
#include "millrace/train/progress.h"

namespace millrace {
namespace {

std::string reopened(const std::string& text, std::int64_t last_step) {
  test::TempDir folder;
  const auto path = folder.write("metrics.jsonl", text);
  drop_lines_beyond(path, last_step);
  AppendFile(path).add("{\"step\":99}\n");
  return read_file(path);
}

TEST(DropLines, MakesNoFile) {
  test::TempDir folder;
  drop_lines_beyond(folder / "metrics.jsonl", 0);
  EXPECT_FALSE(fs::exists(folder / "metrics.jsonl"));
}

TEST(DropLines, DropsWhatAResumedRunWritesAgain) {
  const std::string lines = "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":0.25}\n{\"step\":3,\"loss\":0.125}\n";
  EXPECT_EQ(reopened(lines, 2), "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":0.25}\n{\"step\":99}\n");
  EXPECT_EQ(reopened(lines, 3), lines + "{\"step\":99}\n");
  EXPECT_EQ(reopened(lines, 0), "{\"step\":99}\n");
}

TEST(DropLines, DropsALineCutShortByACrash) {
  EXPECT_EQ(reopened("{\"step\":1}\n{\"step\":2,\"lo", 5), "{\"step\":1}\n{\"step\":99}\n");
}

TEST(DropLines, OfIdsAlsoInALifeThatWritesNone) {
  test::TempDir run;
  run.write("ids.jsonl", "{\"step\":1}\n{\"step\":2}\n");
  Progress({.run_dir = run.path(), .resumed_step = 1, .tensorboard = false, .ids = false});
  EXPECT_EQ(read_file(run / "ids.jsonl"), "{\"step\":1}\n");
}

std::vector<nlohmann::json> lines_of(const std::filesystem::path& path) {
  std::istringstream text(read_file(path));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(Progress, WritesALineOfMetricsAndOfIds) {
  test::TempDir run;
  {
    Progress progress({.run_dir = run.path(), .tensorboard = false, .ids = true});
    progress.ids(1, {"a.tar/0", "a.tar/1"});
    progress.metrics({.step = 1,
                      .samples = 2,
                      .loss = 0.5,
                      .grad_norm = std::numeric_limits<double>::infinity(),
                      .straggler = 1.23456,
                      .slowest_rank = 3});
  }
  const auto metrics = lines_of(run / "metrics.jsonl");
  ASSERT_EQ(metrics.size(), 1u);
  EXPECT_EQ(metrics[0].at("step"), 1);
  EXPECT_EQ(metrics[0].at("loss"), 0.5);
  EXPECT_EQ(metrics[0].at("straggler"), 1.235);
  EXPECT_EQ(metrics[0].at("slowest_rank"), 3);
  EXPECT_TRUE(metrics[0].at("grad_norm").is_null());  // JSON has no infinity
  const auto ids = lines_of(run / "ids.jsonl");
  ASSERT_EQ(ids.size(), 1u);
  EXPECT_EQ(ids[0], (nlohmann::json{{"step", 1}, {"ids", {"a.tar/0", "a.tar/1"}}}));
  EXPECT_FALSE(std::filesystem::exists(run / "tensorboard"));
}

TEST(Progress, TellsTheValidationLossWhereItWasMeasured) {
  test::TempDir run;
  Metrics measured{.step = 2, .loss = 0.5};
  measured.validation = ValidationLosses{{0.25, {{0, 499, 0.5}, {500, 999, std::nan("")}}}, ValidationLoss{0.125, {}}};
  {
    Progress progress({.run_dir = run.path(), .tensorboard = false});
    progress.metrics({.step = 1, .loss = 0.5});
    progress.metrics(measured);
  }
  const auto metrics = lines_of(run / "metrics.jsonl");
  EXPECT_FALSE(metrics[0].contains("validation_loss"));
  EXPECT_EQ(metrics[1].at("validation_loss"), 0.25);
  EXPECT_EQ(metrics[1].at("validation_weights"), "ema");
  EXPECT_EQ(metrics[1].at("validation_loss_raw"), 0.125);
  EXPECT_EQ(metrics[1].at("validation_loss_by_timestep"), (nlohmann::json{{"0-499", 0.5}, {"500-999", nullptr}}));
  EXPECT_THAT(describe(measured, 0), testing::HasSubstr(" val 0.2500"));
}

TEST(Progress, TheLineSaysHowFarItIs) {
  const Metrics metrics{.step = 25, .samples = 100, .loss = 0.5, .step_ms = 1000};
  EXPECT_THAT(describe(metrics, 100),
              testing::AllOf(testing::StartsWith("of 100 (25.0%) seen 100 "), testing::HasSubstr("eta ")));
  EXPECT_THAT(describe(metrics, 100, 2), testing::HasSubstr("eta 0:02:30"));
  EXPECT_THAT(describe(metrics, 0),
              testing::AllOf(testing::StartsWith("seen 100 "), testing::Not(testing::HasSubstr("eta ")),
                             testing::Not(testing::HasSubstr("enc "))));
}

}  // namespace
}  // namespace millrace
