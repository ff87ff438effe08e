// Pipeline folders as people have them: with any of diffusers' schedulers, without an index, or a VAE alone.
#include <gtest/gtest.h>

#include "e2e/runs.h"

namespace millrace::e2e {
namespace {

using nlohmann::json;

std::string at(const std::string& name) {
  return (workshop() / name).string();
}

json read_config(const std::string& path) {
  return json::parse(read(at(path)));
}

// A copy of the workshop's pipeline with this scheduler file.
void make_folder(const std::string& name, const json& scheduler) {
  fs::copy(workshop() / "tiny", workshop() / name, fs::copy_options::recursive);
  std::ofstream(at(name + "/scheduler/scheduler_config.json")) << scheduler;
  auto index = read_config(name + "/model_index.json");
  index["scheduler"][1] = scheduler["_class_name"];
  std::ofstream(at(name + "/model_index.json")) << index;
}

// What diffusers 0.42.1 writes for the noise of Stable Diffusion.
const json ancestral = {{"_class_name", "EulerAncestralDiscreteScheduler"},
                        {"_diffusers_version", "0.42.1"},
                        {"beta_end", 0.012},
                        {"beta_schedule", "scaled_linear"},
                        {"beta_start", 0.00085},
                        {"num_train_timesteps", 1000},
                        {"prediction_type", "epsilon"},
                        {"rescale_betas_zero_snr", false},
                        {"steps_offset", 1},
                        {"timestep_spacing", "linspace"},
                        {"trained_betas", nullptr}};

json third_order_solver() {
  auto solver = ancestral;
  solver.update({{"_class_name", "DPMSolverMultistepScheduler"},
                 {"algorithm_type", "sde-dpmsolver++"},
                 {"solver_order", 3},
                 {"clip_sample", false},
                 {"final_sigmas_type", "zero"},
                 {"use_karras_sigmas", true},
                 {"lower_order_final", true},
                 {"euler_at_final", false}});
  return solver;
}

std::string train_on(const std::string& run, const std::string& folder, const std::string& settings = "") {
  return train(run, "model.pipeline=" + at(folder) + " 'duration=2 steps' " + settings);
}

TEST(Folders, AnySchedulerOfTheSameNoiseTrainsTheSameAndIsExported) {
  expect_success(train_on("plain", "tiny"));
  const auto plain = read(weights_of("plain"));
  for (const auto& scheduler : {ancestral, third_order_solver()}) {
    const std::string name = scheduler["_class_name"];
    make_folder(name, scheduler);
    expect_success(train_on("run-" + name, name));
    EXPECT_TRUE(read(weights_of("run-" + name)) == plain) << name;
    const auto exported = "run-" + name + "-pipeline";
    EXPECT_EQ(read_config(exported + "/scheduler/scheduler_config.json"), scheduler);
    EXPECT_EQ(read_config(exported + "/model_index.json")["scheduler"], (json{"diffusers", name}));

    const auto generate = millrace + " generate --pipeline " + at(exported) + " --prompt dog --out " +
                          at("images-" + name) + " generate.steps=2 ";
    const auto refused = shell(generate);
    EXPECT_EQ(refused.exit_code, 74) << refused.output;
    expect_mentions(refused, name);
    EXPECT_FALSE(fs::exists(at("images-" + name)));
  }
  expect_success(millrace + " generate --pipeline " + at("EulerAncestralDiscreteScheduler") + " --prompt dog --out " +
                 at("images") + " generate.steps=2 generate.sampler=ddim");
  const auto inspected = shell(millrace + " inspect " + at("EulerAncestralDiscreteScheduler"));
  EXPECT_EQ(inspected.exit_code, 0) << inspected.output;
}

TEST(Folders, ASchedulerThatCannotBeTrainedWithIsRefusedBeforeAnythingIsWritten) {
  make_folder("flow", {{"_class_name", "FlowMatchEulerDiscreteScheduler"}, {"num_train_timesteps", 1000}});
  auto rescaled = ancestral;
  rescaled.update({{"_class_name", "DDIMScheduler"}, {"rescale_betas_zero_snr", true}});
  make_folder("rescaled", rescaled);
  for (const std::string options : {"", "--dry-run"}) {
    const auto flow = shell(train_on("refused", "flow", options));
    EXPECT_EQ(flow.exit_code, 74) << flow.output;
    expect_mentions(flow, "FlowMatchEulerDiscreteScheduler");
    const auto zero = shell(train_on("refused", "rescaled", options));
    EXPECT_EQ(zero.exit_code, 2) << zero.output;
    expect_mentions(zero, "objective.prediction = epsilon is undefined at zero terminal SNR");
    EXPECT_FALSE(fs::exists(at("refused")));
  }
}

TEST(Folders, AFolderOfPartsNeedsNoIndex) {
  fs::copy(workshop() / "tiny", workshop() / "parts", fs::copy_options::recursive);
  fs::remove(workshop() / "parts/model_index.json");
  expect_success(train_on("run-parts", "parts"));
  const auto exporting = millrace + " export --run " + at("run-parts") + " --out ";
  expect_success(exporting + at("whole"));
  EXPECT_EQ(read_config("whole/model_index.json"), read_config("tiny/model_index.json"));
  expect_success(millrace + " generate --pipeline " + at("whole") + " --prompt dog --out " + at("of-parts") +
                 " generate.steps=2");

  fs::rename(workshop() / "parts/tokenizer", workshop() / "tokenizer");
  const auto incomplete = shell(exporting + at("incomplete"));
  EXPECT_EQ(incomplete.exit_code, 74) << incomplete.output;
  expect_mentions(incomplete, "parts has no tokenizer, which an export takes from there");
  EXPECT_FALSE(fs::exists(at("incomplete")));
}

std::string train_vae(const std::string& run, const std::string& folder, const std::string& settings = "") {
  return millrace + " train-autoencoder run.dir=" + at(run) + " run.device=cpu model.pipeline=" + at(folder) +
         " data.train.path=" + at("shapes") +
         " transform.resolution=32 batch.global=8 batch.micro=4 data.shuffle_block=2 optim.lr=1e-3 "
         "'optim.warmup=0 steps' 'checkpoint.every=1 steps' 'duration=2 steps' " +
         settings;
}

std::string export_of(const std::string& what, const std::string& path, const std::string& out) {
  return millrace + " export --" + what + " " + at(path) + " --out " + at(out);
}

void expect_same_files(const std::string& a, const std::string& b, std::initializer_list<const char*> files) {
  for (const auto* file : files) {
    ASSERT_TRUE(fs::exists(at(a) + "/" + file)) << a << "/" << file;
    EXPECT_TRUE(read(at(a) + "/" + file) == read(at(b) + "/" + file)) << file << " of " << a << " and " << b;
  }
}

constexpr auto vae_files = {"config.json", "diffusion_pytorch_model.safetensors"};

TEST(Folders, AVaeAloneBecomesAVaeAlone) {
  expect_success(train_vae("vae-of-all", "tiny"));
  const auto dry = shell(train_vae("vae-alone", "tiny/vae", "--dry-run"));
  EXPECT_EQ(dry.exit_code, 0) << dry.output;
  expect_mentions(dry, "RUN/pipeline will be a VAE alone");
  const auto alone = shell(train_vae("vae-alone", "tiny/vae"));
  ASSERT_EQ(alone.exit_code, 0) << alone.output;
  expect_mentions(alone, "vae-alone/pipeline into a pipeline folder, as its vae");
  EXPECT_TRUE(fs::exists(at("vae-alone/DONE")));
  expect_same_files("vae-alone/pipeline", "vae-of-all/pipeline/vae", vae_files);
  EXPECT_FALSE(fs::exists(at("vae-alone/pipeline/model_index.json")));
  expect_success(millrace + " report " + at("vae-alone"));
  EXPECT_NE(read(at("vae-alone/report.md")).find("vae-alone/pipeline is its model"), std::string::npos);

  const auto exported = shell(export_of("run", "vae-alone", "vae-exported"));
  EXPECT_EQ(exported.exit_code, 0) << exported.output;
  expect_mentions(exported, "AutoencoderKL.from_pretrained");
  expect_same_files("vae-exported", "vae-alone/pipeline", vae_files);
  expect_success(train_vae("vae-again", "vae-exported", "model.init=pretrained"));
}

TEST(Folders, AnExportedVaeHasTheScalingFactorOfItsCheckpoint) {
  if (!fs::exists(at("vae-of-all"))) expect_success(train_vae("vae-of-all", "tiny"));
  expect_success(export_of("run", "vae-of-all", "of-run"));
  expect_same_files("of-run", "vae-of-all/pipeline", {"vae/config.json", "vae/diffusion_pytorch_model.safetensors"});
  expect_success(export_of("checkpoint", "vae-of-all/checkpoints/step-00000001", "of-step-1"));
  const auto factor = [](const std::string& folder) -> double {
    return read_config(folder + "/vae/config.json").at("scaling_factor");
  };
  EXPECT_NE(factor("of-run"), factor("tiny"));
  EXPECT_NE(factor("of-step-1"), factor("tiny"));
  EXPECT_NE(factor("of-step-1"), factor("of-run"));

  // A run that was killed between its last checkpoint and its end.
  fs::rename(at("vae-of-all/pipeline"), at("before"));
  fs::remove(at("vae-of-all/DONE"));
  expect_success(train_vae("vae-of-all", "tiny"));
  expect_same_files("vae-of-all/pipeline", "before", {"vae/config.json", "vae/diffusion_pytorch_model.safetensors"});
}

}  // namespace
}  // namespace millrace::e2e
