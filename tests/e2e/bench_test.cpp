// Every benchmark on small inputs: its first figure is the whole thing, and what it computed was checked.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "e2e/program.h"
#include "e2e/weights.h"
#include "millrace/core/stopwatch.h"

namespace millrace::e2e {
namespace {

constexpr int runs = 2;

struct Result {
  std::vector<nlohmann::json> figures;  // in order
  double seconds = 0;                   // of the whole command

  const nlohmann::json& operator[](const std::string& name) const {
    for (const auto& figure : figures)
      if (figure["figure"] == name) return figure;
    static const nlohmann::json none = {{"min", NAN}, {"median", NAN}, {"max", NAN}};
    ADD_FAILURE() << "no figure \"" << name << "\"";
    return none;
  }
};

// What `millrace bench NAME --json` prints; stdout alone.
Result bench(const std::string& name, const std::string& settings, const std::string& launch = "") {
  const Stopwatch watch;
  const auto outcome = shell(launch + millrace + " bench " + name + " --json bench.runs=" + std::to_string(runs) +
                             " run.device=cpu model.pipeline=" + (workshop() / "tiny").string() +
                             " transform.resolution=32 " + settings + " 2> " + (workshop() / "stderr").string());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output << read(workshop() / "stderr");
  Result result{{}, watch.seconds()};
  std::istringstream out(outcome.output);
  for (std::string line; std::getline(out, line);) result.figures.push_back(nlohmann::json::parse(line));
  return result;
}

// The first figure is `figure`, and not less than it must be for all runs, each of `work` units, to have taken place
// while the command ran; nor is it ten thousand times that, as if units were mixed up.
void expect_whole(const Result& result, const std::string& figure, const std::string& unit, double work) {
  ASSERT_FALSE(result.figures.empty());
  const auto& first = result.figures[0];
  EXPECT_EQ(first["figure"], figure);
  EXPECT_EQ(first["unit"], unit);
  for (const auto& line : result.figures) {
    EXPECT_EQ(line["runs"], runs) << line;
    EXPECT_GE(line["min"], 0) << line;
    EXPECT_LE(line["min"], line["median"]) << line;
    EXPECT_LE(line["median"], line["max"]) << line;
  }
  EXPECT_GE(first["max"], runs * work / result.seconds) << first << " in " << result.seconds << " s";
  EXPECT_GT(first["min"], work / result.seconds) << first << " in " << result.seconds << " s";
  EXPECT_LT(first["max"], 1e4 * work / result.seconds) << first << " in " << result.seconds << " s";
}

// The milliseconds of these figures add up to those that the rate tells for `units` of it, run by run; medians lie
// between the extremes.
void expect_time(const Result& result, const std::string& rate, double units, const std::vector<std::string>& parts) {
  double sum = 0;
  for (const auto& part : parts) sum += result[part]["median"].get<double>();
  EXPECT_GE(sum, 0.999 * 1000 * units / result[rate]["max"].get<double>()) << rate;
  EXPECT_LE(sum, 1.001 * 1000 * units / result[rate]["min"].get<double>()) << rate;
}

// `rate` is `factor` times the first figure, in every run.
void expect_multiple(const Result& result, const std::string& rate, double factor, double tolerance = 1e-6) {
  for (const char* key : {"min", "median", "max"})
    EXPECT_NEAR(result[rate][key].get<double>(), factor * result.figures[0][key].get<double>(),
                tolerance * result[rate][key].get<double>())
        << rate;
}

std::string images() {
  return "data.train.path=" + (workshop() / "shapes").string() + " ";
}

constexpr int image_count = 96;

TEST(Bench, TransformWithItsStages) {
  const auto result = bench("transform", images() + "threads=1");
  expect_whole(result, "images", "images/s", image_count);
  double stages = 0;  // of the only thread
  for (const char* stage : {"read", "decode", "transform", "tokenise"}) {
    EXPECT_GT(result[stage]["min"], 0) << stage;
    stages += result[stage]["median"].get<double>();
  }
  EXPECT_LE(stages, 1000 / result["images"]["min"].get<double>());
  EXPECT_GE(stages,
            0.1 * 1000 / result["images"]["max"].get<double>());  // opening archives weighs more on 96 small images
}

// What is read front to back has no splits: one thread reads it, not each of them.
TEST(Bench, TransformReadsAPipeOnce) {
  const auto read_with = [](int threads) {
    const auto opened = (workshop() / ("opened-" + std::to_string(threads))).string();
    bench("transform", "data.allow_pipes=true 'data.train.path=pipe:echo x >> " + opened + "; cat " +
                           (workshop() / "shapes/00000.tar").string() + "' threads=" + std::to_string(threads));
    return read(opened).size();
  };
  EXPECT_EQ(read_with(3), read_with(1));
}

TEST(Bench, LoaderWithItsStages) {
  for (const int threads : {1, 3}) {
    const auto result = bench("loader", images() + "batch.micro=8 threads=" + std::to_string(threads));
    expect_whole(result, "samples", "samples/s", image_count);
    double stages = 0, shortest = 0;
    for (const char* stage : {"read", "decode", "transform", "tokenise"}) {
      EXPECT_GT(result[stage]["min"], 0) << stage;
      stages += result[stage]["median"].get<double>();
      shortest += result[stage]["min"].get<double>();
    }
    EXPECT_GT(result["memory"]["min"], 1);
    EXPECT_LE(result["batch_wait"]["max"], 100);
    EXPECT_LE(result["threads_busy"]["max"], 100);
    // ms of all threads x samples/s / 10 = percent of one thread. Of two runs one may meet a pause of this machine.
    EXPECT_LE(result["threads_busy"]["median"], 1.001 * stages * result["samples"]["max"].get<double>() / 10 / threads);
    EXPECT_GE(result["threads_busy"]["max"], 0.9 * shortest * result["samples"]["min"].get<double>() / 10 / threads);
  }
}

TEST(Bench, LoaderReadsTheRowsItIsGiven) {
  expect_whole(bench("loader", images() + "batch.micro=8 data.train.limit=11"), "samples", "samples/s", 11);
}

TEST(Bench, Encode) {
  const auto result = bench("encode", "encode.batch_size=4");
  expect_whole(result, "images", "images/s", 4);
  for (const char* part : {"vae", "text", "memory"}) EXPECT_GT(result[part]["min"], 0) << part;
}

// Weights that hold NaN are not even read (non_finite_test.cpp). These are finite, but what they make is too large for
// half precision, in which encodings are kept.
TEST(Bench, EncodeTakesNoTimesOfEncodingsThatAreNotFinite) {
  const auto pipeline = workshop() / "overflowing";
  fs::copy(workshop() / "tiny", pipeline, fs::copy_options::recursive);
  set_first_number(pipeline / "vae/diffusion_pytorch_model.safetensors", "quant_conv.bias", 1e6f);
  const auto outcome = shell(millrace + " bench encode bench.runs=1 encode.batch_size=2 run.device=cpu " +
                             "transform.resolution=32 model.pipeline=" + pipeline.string());
  EXPECT_EQ(outcome.exit_code, 78) << outcome.output;
  EXPECT_NE(outcome.output.find("an encoding is not finite"), std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("images/s"), std::string::npos) << outcome.output;
}

TEST(Bench, Step) {
  const auto result = bench("step", "batch.micro=2 bench.steps=3");
  expect_whole(result, "steps", "steps/s", 3);
  expect_multiple(result, "images", 2);
  // The stages are those of other steps, which on a busy machine may take twice or half the time; a pause of it lies in
  // one run of a stage.
  double shortest = 0, longest = 0;
  for (const char* stage : {"input", "forward", "backward", "update"}) {
    EXPECT_GT(result[stage]["min"], 0) << stage;
    shortest += result[stage]["min"].get<double>();
    longest += result[stage]["max"].get<double>();
  }
  EXPECT_GT(longest, 0.5 * 1000 / result["steps"]["max"].get<double>());
  EXPECT_LT(shortest, 2 * 1000 / result["steps"]["min"].get<double>());
}

TEST(Bench, StepSaysWhichAttentionItTook) {
  bench("step", "batch.micro=2 bench.steps=1");
  EXPECT_NE(read(workshop() / "stderr").find("attention: "), std::string::npos) << read(workshop() / "stderr");
}

// The sums come first; then lines of layers, of which those in training's own setting have a share.
TEST(Bench, LayersAddUpToTheirSums) {
  for (const bool channels_last : {false, true}) {
    const std::string own = channels_last ? "channels-last" : "NCHW";
    const auto result =
        bench("layers", "batch.micro=2 model.channels_last=" + std::string(channels_last ? "true" : "false"));
    ASSERT_FALSE(result.figures.empty());
    EXPECT_EQ(result.figures[0]["figure"], "all");
    EXPECT_EQ(result.figures[0]["unit"], "ms");
    double share = 0, ms = 0, gflop = 0, last_share = 1;
    std::map<std::string, double> ms_of;
    std::set<std::string> names;
    for (const auto& row : result.figures) {
      EXPECT_EQ(row["runs"], runs) << row;
      EXPECT_LE(row["min"], row["median"]) << row;
      EXPECT_LE(row["median"], row["max"]) << row;
      if (!row.contains("kind")) continue;
      EXPECT_TRUE(names.insert(row["figure"].get<std::string>()).second) << row;
      EXPECT_GT(row["median"], 0) << row;
      EXPECT_NEAR(row["tflops"].get<double>(), row["gflop"].get<double>() / row["median"].get<double>(),
                  1e-6 * row["tflops"].get<double>());
      EXPECT_EQ(row.contains("layout"), row["kind"] == "convolution") << row;
      if (!row.contains("share")) continue;
      EXPECT_EQ(row.value("layout", own), own) << row;
      EXPECT_LE(row["share"], last_share) << row;
      last_share = row["share"];
      share += last_share;
      gflop += row["calls"].get<double>() * row["gflop"].get<double>();
      ms += row["calls"].get<double>() * row["median"].get<double>();
      ms_of[row["kind"]] += row["calls"].get<double>() * row["median"].get<double>();
    }
    EXPECT_NEAR(share, 1, 1e-6);
    // Sums of medians lie between sums of the extremes.
    const auto expect_between = [&](double sum, const nlohmann::json& figure) {
      EXPECT_GE(sum, 0.999 * figure["min"].get<double>()) << figure;
      EXPECT_LE(sum, 1.001 * figure["max"].get<double>()) << figure;
    };
    expect_between(ms, result["all"]);
    expect_between(1000 * gflop / ms, result["rate"]);
    for (const auto& [kind, sum] : ms_of) expect_between(sum, result[kind]);
    EXPECT_EQ(ms_of.size(), 3);
  }
}

TEST(Bench, LayersAsATable) {
  const auto text =
      shell(millrace + " bench layers bench.runs=1 run.device=cpu batch.micro=1 transform.resolution=32 " +
            "model.pipeline=" + (workshop() / "tiny").string());
  ASSERT_EQ(text.exit_code, 0) << text.output;
  for (const char* part : {"NCHW", "channels-last *", "convolution", "matrix product", "attention", "forward",
                           "input gradient", "weight gradient", "gradients"})
    EXPECT_NE(text.output.find(part), std::string::npos) << part << text.output;
}

// The last column, calls a step, of the row of `name` in a table of a profile.
double calls_in(const std::string& table, const std::string& name) {
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name + "  ")) return std::stod(line.substr(line.find_last_of(' ')));
  ADD_FAILURE() << "no row \"" << name << "\" in " << table;
  return NAN;
}

TEST(Bench, StepWithItsProfile) {
  const std::string settings = "batch.micro=2 bench.steps=1 bench.profile=true";
  auto result = bench("step", settings);
  const auto profile = result["profile"];
  std::erase_if(result.figures, [](const auto& figure) { return figure["figure"] == "profile"; });
  expect_whole(result, "steps", "steps/s", 1);

  double percent = 0, ms = 0;
  std::map<std::string, double> ms_of;
  for (const auto& row : profile["classes"]) {
    percent += row["percent"].get<double>();
    ms += row["ms"].get<double>();
    ms_of[row["class"]] = row["ms"];
  }
  EXPECT_NEAR(percent, 100, 0.1);
  EXPECT_NEAR(ms, profile["ms"].get<double>(), 0.001 * ms);
  for (const char* name : {"convolution", "matrix product", "attention", "normalisation", "pointwise", "optimizer"})
    EXPECT_GT(ms_of[name], 0) << name;
  EXPECT_GT(profile["synchronisations"], 0);  // the gradient norm is read

  // Another run of the same steps, so other times, but the same operations.
  const auto text = shell(millrace + " bench step bench.runs=" + std::to_string(runs) +
                          " run.device=cpu model.pipeline=" + (workshop() / "tiny").string() +
                          " transform.resolution=32 " + settings + " 2> " + (workshop() / "stderr").string());
  ASSERT_EQ(text.exit_code, 0) << text.output << read(workshop() / "stderr");
  for (const auto& row : profile["classes"])
    EXPECT_NEAR(calls_in(text.output, row["class"]), row["calls"].get<double>(), 0.051) << row;
}

TEST(Bench, StepNeedsNoWeightsAndWarmsUpAsLongAsItIsTold) {
  const auto pipeline = (workshop() / "without_weights").string();
  const auto made = shell(millrace + " init --preset tiny --no-weights --out " + pipeline);
  ASSERT_EQ(made.exit_code, 0) << made.output;
  const Stopwatch watch;
  expect_whole(bench("step", "batch.micro=2 bench.steps=1 bench.warm_up=4 model.pipeline=" + pipeline), "steps",
               "steps/s", 1);
  EXPECT_GE(watch.seconds(), 4);
}

TEST(Bench, OptimizerAloneAndShardedOverRanks) {
  std::size_t parameters = 0;
  const SafetensorsFile weights(workshop() / "tiny/unet/diffusion_pytorch_model.safetensors");
  for (const auto& tensor : weights.tensors()) parameters += (tensor.end - tensor.begin) / sizeof(float);
  const auto expect_sound = [&](const Result& result) {
    expect_whole(result, "updates", "updates/s", 1);
    expect_multiple(result, "parameters", static_cast<double>(parameters) / 1e6, 0.01);  // buckets are filled up
    expect_time(result, "updates", 1, {"norm", "update"});
  };
  expect_sound(bench("optimizer", ""));
  expect_sound(bench("optimizer", "", mpirun(2)));
  expect_sound(bench("optimizer", "model.dtype=bfloat16 ema.enabled=false", mpirun(2)));
}

TEST(Bench, Collectives) {
  const auto result = bench("collectives", "parallel.bucket_mb=4", mpirun(3));
  expect_whole(result, "all_reduce", "GB/s", 0.004);
  for (const char* part : {"reduce_scatter", "all_gather", "broadcast"})
    EXPECT_GT(result[part]["min"], 0.004 / result.seconds) << part;
}

TEST(Bench, Handoff) {
  const double gigabytes = 100 * 64 * (8192 + 157696) / 1e9;  // docs/performance.md: 100 parcels of 64 images
  expect_whole(bench("handoff", ""), "bytes", "GB/s", gigabytes);
}

TEST(Bench, Generate) {
  const auto result = bench("generate", "generate.steps=2 generate.batch_size=2");
  expect_whole(result, "images", "images/s", 2);
  expect_time(result, "images", 2.0 / 2, {"step"});  // two images in two steps
}

}  // namespace
}  // namespace millrace::e2e
