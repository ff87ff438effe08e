// Every benchmark on small inputs: its first figure is the whole thing, and what it computed was checked.
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "e2e/program.h"

namespace millrace::e2e {
namespace {

// Figures of `millrace bench NAME --json`, in order; stdout alone.
std::vector<nlohmann::json> bench(const std::string& name, const std::string& settings,
                                  const std::string& launch = "") {
  const auto outcome = shell(launch + millrace + " bench " + name +
                             " --json bench.runs=2 run.device=cpu model.pipeline=" + (workshop() / "tiny").string() +
                             " transform.resolution=32 " + settings + " 2> " + (workshop() / "stderr").string());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output << read(workshop() / "stderr");
  std::vector<nlohmann::json> figures;
  std::istringstream out(outcome.output);
  for (std::string line; std::getline(out, line);) figures.push_back(nlohmann::json::parse(line));
  return figures;
}

void expect_whole(const std::vector<nlohmann::json>& figures, const std::string& figure, const std::string& unit) {
  ASSERT_FALSE(figures.empty());
  EXPECT_EQ(figures[0]["figure"], figure);
  EXPECT_EQ(figures[0]["unit"], unit);
  for (const auto& line : figures) {
    EXPECT_EQ(line["runs"], 2) << line;
    EXPECT_LE(line["min"], line["median"]) << line;
    EXPECT_LE(line["median"], line["max"]) << line;
  }
  EXPECT_GT(figures[0]["min"], 0);
}

std::string images() {
  return "data.train.path=" + (workshop() / "shapes").string() + " ";
}

TEST(Bench, Transform) {
  expect_whole(bench("transform", images()), "images", "images/s");
}

TEST(Bench, LoaderWithItsStages) {
  for (const char* threads : {"threads=1", "threads=3"}) {
    const auto figures = bench("loader", images() + "batch.micro=8 " + threads);
    expect_whole(figures, "samples", "samples/s");
    std::map<std::string, double> median;
    for (const auto& line : figures) median[line["figure"]] = line["median"];
    for (const char* stage : {"read", "decode", "transform", "tokenise", "memory"})
      EXPECT_GT(median[stage], 0) << stage;
    EXPECT_NEAR(median["threads_busy"] + median["threads_wait"], 100, 20) << threads;
  }
}

TEST(Bench, LoaderReadsTheRowsItIsGiven) {
  EXPECT_FALSE(bench("loader", images() + "batch.micro=8 data.train.limit=11").empty());
}

TEST(Bench, Encode) {
  expect_whole(bench("encode", "encode.batch_size=4"), "images", "images/s");
}

TEST(Bench, Step) {
  expect_whole(bench("step", "batch.micro=2 bench.steps=1"), "steps", "steps/s");
}

TEST(Bench, OptimizerAloneAndShardedOverRanks) {
  expect_whole(bench("optimizer", ""), "updates", "updates/s");
  expect_whole(bench("optimizer", "", mpirun(2)), "updates", "updates/s");
  expect_whole(bench("optimizer", "model.dtype=bfloat16 ema.enabled=false", mpirun(2)), "updates", "updates/s");
}

TEST(Bench, Collectives) {
  expect_whole(bench("collectives", "parallel.bucket_mb=1", mpirun(3)), "all_reduce", "GB/s");
}

TEST(Bench, Handoff) {
  expect_whole(bench("handoff", ""), "bytes", "GB/s");
}

TEST(Bench, Generate) {
  expect_whole(bench("generate", "generate.steps=2 generate.batch_size=2"), "images", "images/s");
}

}  // namespace
}  // namespace millrace::e2e
