#include <gmock/gmock.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <variant>

#include "core/file_size_limit.h"
#include "core/temp_dir.h"
#include "millrace/core/files.h"
#include "millrace/core/run_files.h"
#include "millrace/image/decode.h"
#include "millrace/train/progress.h"
#include "own_log.h"

namespace millrace {
namespace {

TEST(GoingBack, CutsIdsAlsoInALifeThatWritesNone) {
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

// What a run trains that begins at `step`, and ends before it has saved.
void train_unsaved(const test::TempDir& run, std::int64_t step, double loss) {
  Progress progress({.run_dir = run.path(), .resumed_step = step, .tensorboard = false, .ids = true});
  progress.metrics({.step = step + 1, .loss = loss});
  progress.ids(step + 1, {"another/0"});
}

TEST(GoingBack, LeavesLinesToTheirCheckpointsUntilTheFirstSave) {
  test::TempDir run;
  const std::string before = "{\"step\":1}\n{\"step\":2}\n", after = "{\"step\":3}\n{\"step\":4}\n";
  const auto metrics = run.write("metrics.jsonl", before + after), ids = run.write("ids.jsonl", before + after);
  fs::create_directories(checkpoints_in(run.path()) / step_name(4));
  for (const std::int64_t step : {2, 2, 1}) {
    train_unsaved(run, step, 7);
    const auto now = lines_of(metrics);
    ASSERT_EQ(std::ssize(now), step + 1);
    EXPECT_EQ(now.back()["loss"], 7);
  }
  // As a kill leaves it between two calls.
  fs::copy_file(run / "ids.jsonl.beyond-step-00000001", run / "ids.jsonl.beyond-step-00000001.abandoned-0123abcd");
  run.write("metrics.jsonl", before + after);

  Progress({.run_dir = run.path(), .resumed_step = 4, .tensorboard = false});
  EXPECT_EQ(read_file(metrics), before + after);
  EXPECT_EQ(read_file(ids), before + after);
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(run.path())) names.insert(entry.path().filename().string());
  EXPECT_THAT(names, testing::ElementsAre("checkpoints", "ids.jsonl",
                                          "ids.jsonl.beyond-step-00000001.abandoned-0123abcd", "metrics.jsonl"));
}

// Killed in its first save, or somebody has removed the checkpoints: their time is over.
TEST(GoingBack, LinesWithoutTheirCheckpointsStayAside) {
  test::TempDir run;
  const auto metrics = run.write("metrics.jsonl", "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
  const auto newest = checkpoints_in(run.path()) / step_name(3);
  fs::create_directories(newest);
  train_unsaved(run, 1, 7);
  fs::rename(newest, newest.string() + ".abandoned-0123abcd");
  Progress({.run_dir = run.path(), .resumed_step = 1, .tensorboard = false});
  EXPECT_EQ(read_file(metrics), "{\"step\":1}\n");
  std::string aside;
  for (const auto& entry : fs::directory_iterator(run.path()))
    if (entry.path().string().find("metrics.jsonl.beyond-step-00000001.abandoned-") != std::string::npos)
      aside = read_file(entry.path());
  EXPECT_EQ(aside, "{\"step\":2}\n{\"step\":3}\n");
}

std::vector<std::string> event_files(const test::TempDir& run) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(run / "tensorboard")) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

// Else a viewer would hide for good what the lines that come back tell.
TEST(GoingBack, EventsOfATryGoWhenTheLinesComeBack) {
  test::TempDir run;
  run.write("metrics.jsonl", "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
  const auto newest = checkpoints_in(run.path()) / step_name(3);
  fs::create_directories(newest);
  const auto start = [&](std::int64_t step) { Progress({.run_dir = run.path(), .resumed_step = step}); };
  start(0);
  EXPECT_THAT(event_files(run), testing::ElementsAre(testing::EndsWith(".beyond-step-00000000")));
  start(1);
  EXPECT_THAT(event_files(run), testing::ElementsAre(testing::EndsWith(".beyond-step-00000001")));
  start(3);
  const auto straight = event_files(run);
  EXPECT_THAT(straight, testing::ElementsAre(testing::EndsWith(".0")));

  start(1);
  fs::rename(newest, newest.string() + ".abandoned-0123abcd");  // as its first save does
  start(1);
  EXPECT_THAT(event_files(run), testing::ElementsAre(straight[0], testing::EndsWith(".0"), testing::EndsWith(".0")));
}

TEST(GoingBack, WithoutALaterCheckpointLinesGo) {
  test::TempDir run;
  run.write("metrics.jsonl", "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
  fs::create_directories(checkpoints_in(run.path()) / step_name(2));
  train_unsaved(run, 2, 7);
  EXPECT_EQ(lines_of(run / "metrics.jsonl").back()["loss"], 7);
  EXPECT_FALSE(fs::exists(run / "metrics.jsonl.beyond-step-00000002"));
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

// With log.every=1000 steps and 2,048 long ids a step more than 100 MB come between two lines of metrics.
TEST(Progress, IdsDoNotWaitForTheNextLineOfMetrics) {
  test::TempDir run;
  Progress progress({.run_dir = run.path(), .tensorboard = false, .ids = true});
  const std::vector<std::string> ids(1024, std::string(1024, 'x'));
  constexpr int steps = 80;  // of 1 MiB each
  for (int step = 1; step <= steps; ++step) progress.ids(step, ids);
  EXPECT_GT(fs::file_size(run / "ids.jsonl"), 70u << 20);
  progress.sync(steps);
  const auto lines = lines_of(run / "ids.jsonl");
  ASSERT_EQ(std::ssize(lines), steps);
  EXPECT_EQ(lines.back()["step"], steps);
}

// Also where a full disk lasts for many checkpoints.
TEST(Progress, WarnsOnceOfLinesThatAreNotThere) {
  test::TempDir run;
  Progress progress({.run_dir = run.path(), .tensorboard = false, .ids = true});
  const auto said = [&](std::int64_t step) {
    testing::internal::CaptureStderr();
    progress.sync(step);
    return testing::internal::GetCapturedStderr();
  };
  for (const std::int64_t step : {10, 20}) {
    progress.ids(step, {std::string(20000, 'x')});
    {
      const test::FileSizeLimit limit(10000);
      EXPECT_THAT(said(step), testing::HasSubstr(fmt::format("lines up to the checkpoint of step {}", step)));
      EXPECT_EQ(said(step + 1), "");
    }
    EXPECT_EQ(said(step + 2), "") << "all are there";
  }
  EXPECT_EQ(std::ssize(lines_of(run / "ids.jsonl")), 2);
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

// TensorBoard reads all pictures of a run when it starts.
TEST(Progress, TensorBoardGetsASmallerPicture) {
  test::TempDir run;
  Image image{2048, 1030, {}};
  image.pixels.resize(3 * 2048 * 1030);
  for (std::size_t i = 0; i < image.pixels.size(); ++i)  // noise on a slope
    image.pixels[i] =
        static_cast<std::uint8_t>(i / 3 % 2048 / 10 + (static_cast<std::uint32_t>(i) * 2654435761u >> 28));
  Progress progress({.run_dir = run.path()});
  const auto path = progress.picture("samples", 3, image);
  EXPECT_EQ(path, run / "samples/step-00000003.png");
  EXPECT_EQ(std::get<Image>(decode_image(read_file(path))).pixels, image.pixels);
  const auto events = read_file(fs::directory_iterator(run / "tensorboard")->path());
  EXPECT_LT(events.size(), fs::file_size(path) / 4);
  const auto jpeg = events.find("\xff\xd8\xff");
  ASSERT_NE(jpeg, events.npos);
  EXPECT_EQ(events.find("\x89PNG"), events.npos);
  const auto shown = std::get<Image>(decode_image(std::string_view(events).substr(jpeg)));
  EXPECT_EQ(shown.width, 1024);
  EXPECT_EQ(shown.height, 515);
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

// Of 89 steps that are left, at the 2 s that a step of this process takes; it began with step 1000.
TEST(Progress, TheTimeLeftIsByTheStepsOfThisProcess) {
  if (log::on_terminal()) GTEST_SKIP() << "where the line is redrawn instead";
  const test::TempDir run;
  const test::OwnLog log;
  Progress progress({.run_dir = run.path(), .resumed_step = 1000, .tensorboard = false, .total_steps = 1100});
  progress.metrics({.step = 1001, .elapsed_seconds = 5000});
  progress.metrics({.step = 1011, .elapsed_seconds = 5020});
  EXPECT_EQ(log.count("eta "), 1) << log.text();
  EXPECT_EQ(log.count("eta 0:02:58"), 1) << log.text();
}

}  // namespace
}  // namespace millrace
