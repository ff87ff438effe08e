// What a run starts from, and the choices of its first steps: through the real binary.
#include <gtest/gtest.h>

#include <algorithm>

#include "e2e/runs.h"
#include "e2e/weights.h"

namespace millrace::e2e {
namespace {

const std::string record_first = "'duration=1 steps' record.steps=[1] ";

fs::path record(const std::string& run) {
  return workshop() / run / "records/step-00000001.safetensors";
}

std::vector<std::int64_t> timesteps(const fs::path& record) {
  const SafetensorsFile file(record);
  const auto found = std::ranges::find(file.tensors(), "timesteps", &TensorInfo::name);
  if (found == file.tensors().end()) return {};
  std::vector<std::int64_t> values(file.bytes(*found).size() / sizeof(std::int64_t));
  std::memcpy(values.data(), file.bytes(*found).data(), file.bytes(*found).size());
  return values;
}

// diffusers names of one weight tensor of the EMA after a run.
Weights exported(const std::string& run, const std::string& weights) {
  const auto out = workshop() / (run + "-" + weights);
  expect_success(millrace + " export --run " + (workshop() / run).string() + " --out " + out.string() +
                 " weights=" + weights);
  return read_weights(out / "unet/diffusion_pytorch_model.safetensors");
}

TEST(Start, ZeroOutputsPredictNothingAtFirst) {
  expect_success(train("zero-out", record_first + "model.unet.init=zero_out"));
  const auto tensors = read_weights(record("zero-out"));
  for (const float value : tensors.at("prediction")) ASSERT_EQ(value, 0);
  double sum = 0;
  for (const float value : tensors.at("target")) sum += static_cast<double>(value) * value;
  EXPECT_NEAR(tensors.at("loss").at(0), sum / static_cast<double>(tensors.at("target").size()), 1e-5);
}

TEST(Start, PretrainedIsThePipelinesUnet) {
  expect_success(train("pretrained", "'duration=1 steps' optim.lr=0 optim.weight_decay=0 model.unet.init=pretrained"));
  EXPECT_EQ(largest_difference(exported("pretrained", "raw"),
                               read_weights(workshop() / "tiny/unet/diffusion_pytorch_model.safetensors")),
            0.0);
}

// Weights that stay as they are, an EMA that starts elsewhere: after n updates decay^n of the way is left. One run
// is cut in two, so that a resume neither starts the EMA anew nor warms it up.
TEST(Start, TheEmaOfAGivenFolderGoesOn) {
  const auto other = workshop() / "other";
  expect_success(millrace + " init --preset tiny --out " + other.string() + " seed=7");
  const auto start = read_weights(other / "unet/diffusion_pytorch_model.safetensors");
  const std::string settings = "optim.lr=0 optim.weight_decay=0 ema.decay=0.75 ";
  const std::map<std::string, fs::path> ways = {
      {"pipeline", other}, {"component", other / "unet"}, {"file", other / "unet/diffusion_pytorch_model.safetensors"}};
  for (const auto& [way, path] : ways) {
    const std::string from = settings + "model.unet.ema_start=" + path.string() + " ";
    const int updates = way == "file" ? 3 : 1;
    if (way == "file") expect_success(mpirun(2) + train("ema-" + way, from + "'duration=2 steps'"));
    expect_success(train("ema-" + way, from + "'duration=" + std::to_string(updates) + " steps'"));
    const auto ema = exported("ema-" + way, "both");
    auto expected =
        read_weights(workshop() / ("ema-" + way + "-both") / "unet/diffusion_pytorch_model.non_ema.safetensors");
    for (auto& [name, values] : expected)
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(values[i] + std::pow(0.75, updates) * (start.at(name)[i] - values[i]));
    EXPECT_LT(largest_difference(ema, expected), 1e-6) << way;
  }
}

TEST(Start, AnEmaThatCannotStartIsAnError) {
  const auto no_use = shell(train("ema-off", "'duration=1 steps' ema.enabled=false model.unet.ema_start=x"));
  EXPECT_EQ(no_use.exit_code, 2);
  EXPECT_NE(no_use.output.find("model.unet.ema_start"), std::string::npos) << no_use.output;
  const auto missing = shell(train("ema-missing", "'duration=1 steps' model.unet.ema_start=/nowhere/unet"));
  EXPECT_EQ(missing.exit_code, 74);
  EXPECT_NE(missing.output.find("/nowhere/unet"), std::string::npos) << missing.output;
  EXPECT_FALSE(fs::exists(workshop() / "ema-missing"));
}

// It would be an average of weights that the run left long ago.
TEST(Start, AnEmaThatBeginsLaterBeginsFromTheWeights) {
  expect_success(train("ema-later", "'duration=1 steps' ema.enabled=false"));
  const auto resumed =
      shell(train("ema-later", "'duration=2 steps' model.unet.ema_start=" + (workshop() / "tiny").string()));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  const std::string warning = "model.unet.ema_start is for the start of a run";
  EXPECT_NE(resumed.output.find(warning), std::string::npos) << resumed.output;
  const auto again =
      shell(train("ema-later", "'duration=3 steps' model.unet.ema_start=" + (workshop() / "tiny").string()));
  EXPECT_EQ(again.exit_code, 0) << again.output;
  EXPECT_EQ(again.output.find(warning), std::string::npos) << again.output;
}

TEST(Start, AUnetOfAnotherShape) {
  auto config = nlohmann::json::parse(read(workshop() / "tiny/unet/config.json"));
  config["layers_per_block"] = 2;
  const auto path = workshop() / "deeper.json";
  std::ofstream(path) << config;
  expect_success(train("deeper", "'duration=1 steps' model.unet.config=" + path.string()));
  const auto weights = exported("deeper", "raw");
  EXPECT_TRUE(weights.contains("down_blocks.0.resnets.1.conv1.weight"));
  EXPECT_EQ(nlohmann::json::parse(read(workshop() / "deeper-raw/unet/config.json"))["layers_per_block"], 2);

  const auto pretrained = shell(
      train("deeper-pretrained", "'duration=1 steps' model.unet.init=pretrained model.unet.config=" + path.string()));
  EXPECT_EQ(pretrained.exit_code, 74);
  EXPECT_NE(pretrained.output.find("resnets.1"), std::string::npos) << pretrained.output;
}

// 24 samples of a step have one timestep each in 24 equal parts of the range, whoever trains them.
TEST(Start, StratifiedTimestepsCoverTheRangeOnAnyRanks) {
  const std::string settings = record_first + "objective.timesteps=stratified batch.global=24 data.stripes=4 ";
  expect_success(train("stratified-one", settings));
  expect_success(mpirun(4) + train("stratified-three", settings + "roles.producers=1"));
  auto drawn = timesteps(record("stratified-one"));
  ASSERT_EQ(drawn.size(), 24u);
  EXPECT_EQ(drawn, timesteps(record("stratified-three")));
  std::ranges::sort(drawn);
  for (std::int64_t part = 0; part < 24; ++part) {
    EXPECT_GE(drawn[static_cast<std::size_t>(part)], part * 1000 / 24);
    EXPECT_LE(drawn[static_cast<std::size_t>(part)], (part + 1) * 1000 / 24);
  }
}

// What many clusters set: OpenMP's binding must not leave a rank one thread, nor a team smaller than agreed make it
// hang.
TEST(Start, OpenMPsSettingsCostNoThreads) {
  const auto threads_with = [](const std::string& variables) {
    const auto outcome = shell("export " + variables + "; timeout 600 " +
                               train("openmp", record_first + "batch.global=2 data.stripes=2 checkpoint.every=null"));
    EXPECT_EQ(outcome.exit_code, 0) << variables << "\n" << outcome.output;
    const auto end = outcome.output.find(" a rank, model in");
    return outcome.output.substr(outcome.output.rfind(", ", end), end - outcome.output.rfind(", ", end));
  };
  const auto all = threads_with("UNRELATED=1");
  EXPECT_NE(all.find("thread"), std::string::npos);
  const auto loss = read_weights(record("openmp")).at("loss");
  for (const std::string variables :
       {"OMP_PROC_BIND=true", "OMP_PROC_BIND=spread OMP_PLACES=threads", "OMP_DYNAMIC=true", "OMP_THREAD_LIMIT=1"}) {
    EXPECT_EQ(threads_with(variables), all);
    EXPECT_EQ(read_weights(record("openmp")).at("loss"), loss) << variables;
  }
}

}  // namespace
}  // namespace millrace::e2e
