// Pictures that a run paints on its way.
#include <gtest/gtest.h>

#include <cstdlib>

#include "e2e/runs.h"
#include "millrace/image/decode.h"

namespace millrace::e2e {
namespace {

// A list of so many prompts, two of three with something that shall not be seen.
std::string list_of(std::size_t rows) {
  const std::vector<std::string> texts = {
      R"({"prompt": "a red circle", "negative_prompt": "many small green triangles beside each other, blurry, dark"})",
      R"({"prompt": "a blue square on white"})", R"({"prompt": "three dogs", "negative_prompt": "cats and horses"})"};
  const auto path = workshop() / ("prompts-" + std::to_string(rows) + ".jsonl");
  std::ofstream out(path);
  for (std::size_t n = 0; n < rows; ++n) out << texts[n % texts.size()] << "\n";
  return path.string();
}

std::string prompts() {
  return " samples.prompts=" + list_of(3) +
         " samples.count=5 samples.steps=4 samples.every='1 steps' samples.guidance_scale=12";
}

// A command that paints the same pictures with the weights of a run.
std::string generate_from(const std::string& run, const fs::path& out) {
  const auto pipeline = workshop() / (run + "-exported");
  expect_success(millrace + " export --run " + (workshop() / run).string() + " --out " + pipeline.string());
  return millrace + " generate --pipeline " + pipeline.string() + " --prompts " + list_of(5) + " --out " +
         out.string() + " generate.steps=4 generate.guidance_scale=12 ";
}

// Five pictures, which neither 2 nor 3 trainers share evenly, in batches of two; painted between the two steps and at
// the end.
const std::string run_of_two = "'duration=2 steps'";

// A run that paints, the reference that others are compared with.
const std::string& painted() {
  static const std::string run = [] {
    expect_success(train("painted", run_of_two + prompts()));
    return std::string("painted");
  }();
  return run;
}

// The same on three trainers that share all weights, which notes what each rank reads.
const std::string& counted() {
  static const std::string run = [] {
    const auto calls = workshop() / "calls";
    fs::create_directories(calls);
    expect_success(mpirun(4) + "env MILLRACE_INJECT=count=" + calls.string() + " " + MILLRACE_INJECT_BINARY +
                   train("counted", run_of_two + prompts() + " roles.producers=1 parallel.strategy=full_shard")
                       .substr(millrace.size()));
    return std::string("counted");
  }();
  return run;
}

Image picture(const fs::path& path) {
  const auto bytes = read(path);
  return std::get<Image>(decode_image(bytes));
}

int largest_difference(const Image& a, const Image& b) {
  if (a.width != b.width || a.height != b.height) return 256;
  int largest = 0;
  for (std::size_t i = 0; i < a.pixels.size(); ++i)
    largest = std::max(largest, std::abs(int{a.pixels[i]} - int{b.pixels[i]}));
  return largest;
}

TEST(Samples, ChangeNothingAndAreWhatGeneratePaints) {
  expect_success(train("plain", run_of_two));
  EXPECT_EQ(read(workshop() / "plain/ids.jsonl"), read(workshop() / painted() / "ids.jsonl"));
  EXPECT_EQ(read(weights_of("plain")), read(weights_of(painted())));
  EXPECT_TRUE(fs::exists(workshop() / painted() / "samples/step-00000001.png"));

  const auto out = workshop() / "generated";
  expect_success(generate_from(painted(), out));
  const auto first = picture(workshop() / painted() / "samples/step-00000001.png"),
             last = picture(workshop() / painted() / "samples/step-00000002.png");
  EXPECT_LE(largest_difference(last, picture(out / "grid.png")), 1) << "kernels may round otherwise in other batches";
  EXPECT_GT(largest_difference(last, first), 4) << "the weights of another step would not be noticed";
}

TEST(Samples, AreTheSameOnAnyRanks) {
  expect_success(mpirun(4) + train("ddp", run_of_two + prompts() + " roles.producers=1 parallel.strategy=ddp"));
  for (const std::string& run : {std::string("ddp"), counted()}) {
    // Weights differ by the order of sums.
    EXPECT_LE(largest_difference(picture(workshop() / painted() / "samples/step-00000002.png"),
                                 picture(workshop() / run / "samples/step-00000002.png")),
              2)
        << run;
  }
}

TEST(Samples, OneTrainerReadsTheTextEncoderForAll) {
  ASSERT_TRUE(fs::exists(workshop() / counted() / "DONE"));
  std::set<int> readers;
  for (int rank = 0; rank < 4; ++rank)
    if (read(workshop() / "calls" / ("rank-" + std::to_string(rank) + ".tsv"))
            .find("/text_encoder/model.safetensors") != std::string::npos)
      readers.insert(rank);
  EXPECT_EQ(readers, (std::set{0, 3})) << "the first trainer, and the producer";
}

TEST(Samples, AMissingListIsNamedBeforeTheStart) {
  const auto outcome = shell(train("none", run_of_two + " samples.prompts=" + (workshop() / "missing.txt").string()));
  EXPECT_EQ(outcome.exit_code, 74) << outcome.output;
  expect_mentions(outcome, "samples.prompts: cannot open " + (workshop() / "missing.txt").string());
  EXPECT_FALSE(fs::exists(workshop() / "none"));
}

// A copy of the workshop's pipeline with these keys in its scheduler's file.
std::string pipeline_with(const std::string& name, const nlohmann::json& keys) {
  const auto folder = workshop() / name;
  fs::copy(workshop() / "tiny", folder, fs::copy_options::recursive);
  auto scheduler = nlohmann::json::parse(read(folder / "scheduler/scheduler_config.json"));
  scheduler.update(keys);
  std::ofstream(folder / "scheduler/scheduler_config.json") << scheduler;
  auto index = nlohmann::json::parse(read(folder / "model_index.json"));
  index["scheduler"][1] = scheduler["_class_name"];
  std::ofstream(folder / "model_index.json") << index;
  return " model.pipeline=" + folder.string();
}

TEST(Samples, ASchedulerThatPaintsNothingHereGivesWayToDdim) {
  expect_success(
      train("ddpm", run_of_two + prompts() + pipeline_with("ddpm-folder", {{"_class_name", "DDPMScheduler"}})));
  const auto log = read(workshop() / "ddpm/log/rank-00000.log");
  EXPECT_NE(log.find("by DDIMScheduler in 4 steps, as no sampler here does what the pipeline's DDPMScheduler says"),
            std::string::npos)
      << log;

  const auto out = workshop() / "ddpm-images";
  const auto generate = generate_from("ddpm", out);
  const auto refused = shell(generate);
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  expect_mentions(refused, "generate.sampler=ddim");
  EXPECT_FALSE(fs::exists(out));
  expect_success(generate + "generate.sampler=ddim");
  EXPECT_LE(largest_difference(picture(workshop() / "ddpm/samples/step-00000002.png"), picture(out / "grid.png")), 1);
}

TEST(Samples, StepsThatTheSamplerRefusesAreNamedBeforeTheStart) {
  const auto folder = pipeline_with("runge-kutta", {{"skip_prk_steps", false}});
  for (const std::string options : {"", " --dry-run"}) {
    const auto outcome = shell(train("few", run_of_two + prompts() + " samples.steps=3" + folder + options));
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    expect_mentions(outcome, "samples.steps: PNDM with Runge-Kutta steps");
    EXPECT_FALSE(fs::exists(workshop() / "few"));
  }
  const auto many = shell(train("many", run_of_two + prompts() + " samples.steps=1001"));
  EXPECT_EQ(many.exit_code, 2) << many.output;
  expect_mentions(many, "samples.steps: 1001 sampling steps do not fit");
  EXPECT_FALSE(fs::exists(workshop() / "many"));
}

// Wherever they cannot be written, the run goes on.
TEST(Samples, AFolderThatCannotBeWrittenEndsNothing) {
  const auto run = workshop() / "blocked";
  fs::create_directories(run);
  std::ofstream(run / "samples") << "a file where the folder should be";
  const auto outcome = shell(train("blocked", run_of_two + prompts()));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_mentions(outcome, "pictures of step 1: ");
}

}  // namespace
}  // namespace millrace::e2e
