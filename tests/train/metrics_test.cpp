#include "millrace/train/metrics.h"

#include <gmock/gmock.h>

#include <regex>
#include <set>
#include <sstream>

#include "core/temp_dir.h"
#include "millrace/core/files.h"
#include "prometheus.h"

namespace millrace {
namespace {

Metrics measured_metrics() {
  GpuUse gpu;
  gpu.busy.add(0.5, 1), gpu.memory_gib.add(20, 1), gpu.watts.add(300, 1);
  Metrics metrics{.step = 2,
                  .samples = 64,
                  .loss = std::nan(""),
                  .lr = 1e-4,
                  .rows = 70,
                  .rejected = {{"decode_error", 3}, {"filtered", 2}},
                  .checkpoint = SavedPoint{1, 7200.04},
                  .gpu = gpu,
                  .encode_gpu = gpu,
                  .gpu_clock_mhz = 1305,
                  .gpu_temperature = 84};
  metrics.loss_parts = {{"l1", 0.5}, {"mse", 0.25}, {"kl", 3}};
  metrics.validation =
      ValidationLosses{{0.25, {{0, 499, 0.5, 2}, {500, 999, std::nan("")}}, 1.5}, ValidationLoss{0.125, {}}};
  return metrics;
}

// Fields that are texts have no place among the numbers.
TEST(MetricFields, AreThoseOfALine) {
  std::set<std::string> names = {"validation_weights", "time"};
  for (const auto& field : metric_fields()) names.emplace(field.name);
  std::set<std::string> written;
  const auto line = metrics_line(measured_metrics());
  for (const auto& [name, value] : line.items()) written.insert(name);
  EXPECT_EQ(written, names);
}

TEST(MetricFields, TheUnweightedLossIsOfRunsThatWeight) {
  auto metrics = measured_metrics();
  const auto line = metrics_line(metrics);
  EXPECT_EQ(line.at("validation_loss"), 0.25);
  EXPECT_EQ(line.at("validation_loss_unweighted"), 1.5);
  EXPECT_EQ(line.at("validation_loss_unweighted_by_timestep").at("0-499"), 2);
  metrics.validation->exported.unweighted.reset();
  EXPECT_FALSE(metrics_line(metrics).contains("validation_loss_unweighted"));
}

TEST(MetricFields, TheCheckpointIsOfRunsThatSave) {
  auto metrics = measured_metrics();
  EXPECT_EQ(metrics_line(metrics).at("checkpoint_step"), 1);
  EXPECT_EQ(metrics_line(metrics).at("checkpoint_age_s"), 7200);
  metrics.checkpoint.reset();
  EXPECT_FALSE(metrics_line(metrics).contains("checkpoint_age_s"));
}

TEST(MetricFields, TheReasonsAreThoseThatOccurred) {
  const auto line = metrics_line(measured_metrics());
  EXPECT_EQ(line.at("rows"), 70);
  EXPECT_EQ(line.at("rejected").dump(), R"({"decode_error":3,"filtered":2})");
  EXPECT_EQ(metrics_line({.step = 1}).at("rejected").dump(), "{}");
}

TEST(MetricFields, WhatGpusDoNotTellIsLeftOut) {
  const auto line = metrics_line(measured_metrics()), unknown = metrics_line({.step = 1});
  EXPECT_EQ(line.at("gpu_clock_mhz"), 1305);
  EXPECT_EQ(line.at("gpu_temperature"), 84);
  EXPECT_FALSE(unknown.contains("gpu_clock_mhz"));
  EXPECT_FALSE(unknown.contains("gpu_temperature"));
}

// Every name in the rules is one that a run writes.
TEST(Prometheus, TheRulesAskForWhatIsThere) {
  const auto rules = read_file(MILLRACE_SOURCE_DIR "/examples/prometheus/millrace.rules.yml");
  const auto text = prometheus_text(metrics_line(measured_metrics()), "run", true);
  const std::regex name("millrace_[a-z_]+");
  int names = 0;
  for (std::sregex_iterator found(rules.begin(), rules.end(), name), end; found != end; ++found, ++names)
    EXPECT_THAT(text, testing::HasSubstr("# TYPE " + found->str() + " ")) << found->str();
  EXPECT_GE(names, 8);
}

TEST(MetricFields, AreDocumentedInTheirOrder) {
  std::istringstream page(read_file(MILLRACE_SOURCE_DIR "/docs/metrics.md"));
  const std::regex row(R"(\| `([a-z_0-9]+)` \|.*)");
  std::vector<std::string> documented, names;
  std::smatch match;
  for (std::string line; std::getline(page, line);)
    if (std::regex_match(line, match, row)) documented.push_back(match[1]);
  for (const auto& field : metric_fields()) {
    names.emplace_back(field.name);
    if (field.name == "validation_loss") names.emplace_back("validation_weights");
  }
  names.emplace_back("time");
  EXPECT_EQ(documented, names);
}

// The grammar of the text format: HELP and TYPE once and before the samples of a name, which are NAME{LABELS} VALUE.
TEST(Prometheus, TextIsWellFormed) {
  std::istringstream text(prometheus_text(metrics_line(measured_metrics()), "a \"run\"\\", true));
  const std::regex help(R"(# HELP (millrace_[a-z0-9_]+) [^\n]+)"),
      type(R"(# TYPE (millrace_[a-z0-9_]+) (gauge|counter))"),
      sample(R"re((millrace_[a-z0-9_]+)\{run="a \\"run\\"\\\\"(,of="[^"]+")?\} (NaN|-?[0-9.]+(e[-+]?[0-9]+)?))re");
  std::set<std::string> names;
  std::string present;
  std::smatch match;
  for (std::string line; std::getline(text, line);) {
    if (std::regex_match(line, match, help)) {
      present = match[1];
      EXPECT_TRUE(names.insert(present).second) << line;
    } else if (std::regex_match(line, match, type)) {
      EXPECT_EQ(match[1], present);
      EXPECT_EQ(match[2] == "counter", present.ends_with("_total"));
    } else if (std::regex_match(line, match, sample)) {
      EXPECT_EQ(match[1], present);
    } else {
      ADD_FAILURE() << line;
    }
  }
  EXPECT_THAT(names, testing::IsSupersetOf({"millrace_step", "millrace_samples_total", "millrace_loss", "millrace_lr",
                                            "millrace_validation_loss_by_timestep", "millrace_running"}));
}

TEST(Prometheus, TheFileIsReplacedAndMayFail) {
  test::TempDir folder;
  PrometheusFile file(folder / "run.prom", "run");
  file.write(metrics_line(measured_metrics()));
  file.write(metrics_line({.step = 1}));
  EXPECT_THAT(read_file(folder / "run.prom"), testing::HasSubstr("millrace_validation_loss{run=\"run\"} 0.25\n"));
  file.write(metrics_line({.step = 2}));
  EXPECT_THAT(read_file(folder / "run.prom"), testing::HasSubstr("millrace_step{run=\"run\"} 2\n"));
  EXPECT_THAT(read_file(folder / "run.prom"), testing::EndsWith("millrace_running{run=\"run\"} 1\n"));
  file.end();
  EXPECT_THAT(read_file(folder / "run.prom"), testing::AllOf(testing::HasSubstr("millrace_step{run=\"run\"} 2\n"),
                                                             testing::EndsWith("millrace_running{run=\"run\"} 0\n")));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);  // nothing else lies there
  EXPECT_NO_THROW(PrometheusFile(folder / "missing" / "run.prom", "run").write(metrics_line({.step = 1})));
}

TEST(Prometheus, CountersDoNotFallWhenStepsAreTrainedAgain) {
  test::TempDir folder;
  const auto path = folder / "run.prom";
  const auto expect_counts = [&](int samples, int skipped) {
    EXPECT_THAT(
        read_file(path),
        testing::AllOf(testing::HasSubstr("millrace_samples_total{run=\"run\"} " + std::to_string(samples) + "\n"),
                       testing::HasSubstr("millrace_skipped_total{run=\"run\"} " + std::to_string(skipped) + "\n")));
  };
  PrometheusFile(path, "run").write(metrics_line({.step = 11, .samples = 1100, .skipped = 41}));
  PrometheusFile later(path, "run");
  later.go_on();
  later.write(metrics_line({.step = 10, .samples = 1000, .skipped = 40}));
  expect_counts(1100, 41);
  EXPECT_THAT(read_file(path), testing::HasSubstr("millrace_step{run=\"run\"} 10\n"));
  later.write(metrics_line({.step = 12, .samples = 1200, .skipped = 40}));
  expect_counts(1200, 41);

  // Of another run, or of one that begins at 0.
  PrometheusFile other(path, "other");
  other.go_on();
  other.write(metrics_line({.step = 1, .samples = 100}));
  EXPECT_THAT(read_file(path), testing::HasSubstr("millrace_samples_total{run=\"other\"} 100\n"));
  PrometheusFile missing(folder / "missing.prom", "run");
  missing.go_on();
  missing.write(metrics_line({.step = 1, .samples = 100}));
  EXPECT_THAT(read_file(folder / "missing.prom"), testing::HasSubstr("millrace_samples_total{run=\"run\"} 100\n"));
}

}  // namespace
}  // namespace millrace
