// Pipeline folders as people have them: with any of diffusers' schedulers, without an index, or a VAE alone.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "e2e/runs.h"
#include "e2e/weights.h"

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
  const std::string of_two = "batch.global=2 data.stripes=2";  // samples a step
  expect_success(train_on("plain", "tiny", of_two));
  const auto plain = read(weights_of("plain"));
  for (const auto& scheduler : {ancestral, third_order_solver()}) {
    const std::string name = scheduler["_class_name"];
    make_folder(name, scheduler);
    expect_success(train_on("run-" + name, name, of_two));
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
  EXPECT_EQ(read_config("vae-alone/environment.json")["ranks"][0]["role"], "trainer");

  const auto exported = shell(export_of("run", "vae-alone", "vae-exported"));
  EXPECT_EQ(exported.exit_code, 0) << exported.output;
  expect_mentions(exported, "AutoencoderKL.from_pretrained");
  expect_same_files("vae-exported", "vae-alone/pipeline", vae_files);
  // A VAE that goes on keeps the scale that the U-Nets around it know, unless somebody says otherwise.
  expect_success(train_vae("vae-again", "vae-exported", "model.init=pretrained 'duration=1 steps'"));
  const auto factor = [](const std::string& folder) { return read_config(folder + "/config.json")["scaling_factor"]; };
  EXPECT_EQ(factor("vae-again/pipeline"), factor("vae-exported"));
  expect_success(train_vae("vae-measured", "vae-exported",
                           "model.init=pretrained autoencoder.scaling_factor=measure 'duration=1 steps'"));
  EXPECT_NE(factor("vae-measured/pipeline"), factor("vae-exported"));

  // What a run has exported gives way to what it exports when it has gone on.
  const auto before = read(at("vae-again/pipeline/diffusion_pytorch_model.safetensors"));
  fs::create_directories(at("vae-again/pipeline.new-killed/vae"));  // as a kill leaves it
  const auto chosen = shell(train_vae("vae-again", "vae-exported",
                                      "model.init=pretrained autoencoder.scaling_factor=0.25 'duration=2 steps'"));
  EXPECT_EQ(chosen.exit_code, 0) << chosen.output;
  expect_mentions(chosen, " in the checkpoint, 0.25 from now on");
  EXPECT_EQ(factor("vae-again/pipeline"), 0.25);
  EXPECT_NE(read(at("vae-again/pipeline/diffusion_pytorch_model.safetensors")), before);
  for (const auto& entry : fs::directory_iterator(at("vae-again"))) {
    const auto name = entry.path().filename().string();
    EXPECT_TRUE(!name.starts_with("pipeline.") || name == "pipeline.json") << name;
  }

  auto config = read_config("vae-exported/config.json");
  config["scaling_factor"] = 0.5;
  std::ofstream(at("vae-exported/config.json")) << config;
  const auto refused = shell(train_vae("vae-again", "vae-exported", "model.init=pretrained 'duration=3 steps'"));
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  expect_mentions(refused, "model.scaling_factor: ");
}

int folders_before(const std::string& run, const std::string& with) {
  int found = 0;
  for (const auto& entry : fs::directory_iterator(at(run)))
    found += entry.path().filename().string().starts_with("pipeline.before-") && fs::exists(entry.path() / with);
  return found;
}

// The run would take away what it began with, and somebody's model.
TEST(Folders, NoModelLiesWhereTheTrainedVaeGoes) {
  fs::create_directory(at("beside"));
  fs::copy(workshop() / "tiny", workshop() / "beside/pipeline", fs::copy_options::recursive);
  for (const std::string folder : {"beside/pipeline", "beside/pipeline/vae", "beside/../beside/pipeline/"}) {
    const auto inside = shell(train_vae("beside", folder));
    EXPECT_EQ(inside.exit_code, 2) << inside.output;
    expect_mentions(inside, "lies where the trained VAE goes");
  }
  const auto another = shell(train_vae("beside", "tiny"));
  EXPECT_EQ(another.exit_code, 2) << another.output;
  expect_mentions(another, "beside/pipeline is there, and this run did not write it");
  EXPECT_TRUE(fs::exists(at("beside/pipeline/unet/config.json")));

  // One that came while the run was under way, here in its first step, is kept.
  fs::rename(at("beside/pipeline"), at("moved"));
  const auto command = train_vae("beside", "tiny", "'duration=1 steps'").substr(millrace.size());
  const auto found = shell("(exec env 'MILLRACE_INJECT=stop@0:1:*' " MILLRACE_INJECT_BINARY + command + ") & run=$!; " +
                           wait_for("/proc/$run/status", "State:.T") + "; mv " + at("moved") + " " +
                           at("beside/pipeline") + "; kill -CONT $run; wait $run");
  EXPECT_EQ(found.exit_code, 0) << found.output;
  expect_mentions(found, "was there, and this run did not write it: it is");
  EXPECT_FALSE(read_config("beside/pipeline/vae/config.json").empty());
  EXPECT_EQ(folders_before("beside", "unet"), 1);

  fs::remove_all(at("beside/pipeline"));
  fs::copy(workshop() / "tiny", workshop() / "beside/pipeline", fs::copy_options::recursive);
  const auto later = shell(train_vae("beside", "tiny", "'duration=2 steps'"));
  EXPECT_EQ(later.exit_code, 2) << later.output;
  expect_mentions(later, "beside/pipeline is there, and this run did not write it");
}

TEST(Folders, WhatWasPutBesideATrainedVaeIsKept) {
  expect_success(train_vae("added", "tiny", "'duration=1 steps'"));
  std::ofstream(at("added/pipeline/unet/of-ours.txt")) << "weeks of work";
  const auto longer = shell(train_vae("added", "tiny"));
  EXPECT_EQ(longer.exit_code, 0) << longer.output;
  expect_mentions(longer, "held files that are newer than what this run exported there: it is");
  EXPECT_EQ(folders_before("added", "unet/of-ours.txt"), 1);
}

// A step of eight images without captions. The EMA stays where it began, and so small a step leads hardly away from it.
const std::string& recorded_vae() {
  static const std::string run = [] {
    expect_success("mkdir " + at("bare") + " && tar -xf " + at("shapes") + "/00000.tar -C " + at("bare") + " && cd " +
                   at("bare") + " && rm -f *.txt && tar -cf ../bare.tar *");
    expect_success(train_vae("vae-of-bare", "tiny",
                             "data.train.path=" + at("bare.tar") +
                                 " 'duration=1 steps' 'record.steps=[1]' optim.lr=3e-6 ema.decay=1 ema.warmup=false "
                                 "autoencoder.l1=0.5 autoencoder.mse=2 autoencoder.kl=0.1"));
    return std::string("vae-of-bare");
  }();
  return run;
}

TEST(Folders, AVaeTrainsOnImagesWithoutCaptions) {
  expect_mentions(shell("head -n1 " + at(recorded_vae() + "/metrics.jsonl")), "\"loss_kl\":");
}

double standard_deviation(const std::vector<float>& values) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / (count - 1));
}

// The formulas once more, of what the record of the step holds.
TEST(Folders, LossAndScaleOfAVaeAreThoseOfTheFormulas) {
  const auto record = read_weights(at(recorded_vae() + "/records/step-00000001.safetensors"));
  const auto &image = record.at("image"), &reconstruction = record.at("reconstruction");
  double l1 = 0, mse = 0;
  for (std::size_t i = 0; i < image.size(); ++i) {
    const double error = static_cast<double>(reconstruction.at(i)) - image[i];
    l1 += std::abs(error) / static_cast<double>(image.size());
    mse += error * error / static_cast<double>(image.size());
  }
  // The means of a sample's latents stand in front of their log-variances.
  const auto &moments = record.at("moments"), &latents = record.at("latents");
  const auto of_sample = latents.size() / 8;
  double kl = 0;
  for (std::size_t i = 0; i < latents.size(); ++i) {
    const auto place = i / of_sample * 2 * of_sample + i % of_sample;
    const double mean = moments.at(place), log_variance = moments.at(place + of_sample);
    kl += 0.5 * (mean * mean + std::exp(log_variance) - 1 - log_variance) / static_cast<double>(latents.size());
  }
  const auto logged = lines(at(recorded_vae() + "/metrics.jsonl")).at(0);
  EXPECT_NEAR(logged.at("loss_l1").get<double>(), l1, 1e-5 * l1);
  EXPECT_NEAR(logged.at("loss_mse").get<double>(), mse, 1e-5 * mse);
  EXPECT_NEAR(logged.at("loss_kl").get<double>(), kl, 1e-5 * kl);
  const double loss = 0.5 * l1 + 2 * mse + 0.1 * kl;
  EXPECT_NEAR(logged.at("loss").get<double>(), loss, 1e-5 * loss);

  const double deviation = standard_deviation(latents);
  EXPECT_GT(std::abs(deviation - 1), 0.01) << "it tells nothing of its inverse";
  const double of_ema = read_config(recorded_vae() + "/pipeline/vae/config.json").at("scaling_factor");
  EXPECT_NEAR(of_ema * deviation, 1, 1e-5);
  const double of_raw =
      read_config(recorded_vae() + "/checkpoints/step-00000001/MANIFEST.json").at("scaling_factor_raw");
  EXPECT_NEAR(of_raw * deviation, 1, 1e-2);
  EXPECT_GT(std::abs(of_raw * deviation - 1), 2e-5) << "it is the EMA's";
}

void change_a_weight(const std::string& file) {
  auto bytes = read(at(file));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(at(file)) << bytes;
}

// What lies in the folder now is another model's; a U-Net does not work with it.
TEST(Folders, AUnetIsExportedWithThePartsThatItWasTrainedWith) {
  fs::copy(workshop() / "tiny", workshop() / "changing", fs::copy_options::recursive);
  expect_success(
      train_on("run-changing", "changing", "objective.prediction=v_prediction objective.zero_terminal_snr=true"));
  auto tokenizer = read_config("changing/tokenizer/tokenizer_config.json");
  tokenizer["model_max_length"] = 248;
  std::ofstream(at("changing/tokenizer/tokenizer_config.json")) << tokenizer;
  const auto rewritten = shell(export_of("run", "run-changing", "of-rewritten"));
  EXPECT_EQ(rewritten.exit_code, 0) << rewritten.output;
  expect_mentions(rewritten, "goes with a part that it was not trained with: model.pipeline: tokenizer.files: ");
  const auto scheduler = read_config("of-rewritten/scheduler/scheduler_config.json");  // the folder's is another
  EXPECT_EQ(scheduler.at("prediction_type"), "v_prediction");
  EXPECT_EQ(scheduler.at("rescale_betas_zero_snr"), true);
  const auto of_248 = shell(train_on("run-of-248", "changing", "--dry-run"));
  EXPECT_EQ(of_248.exit_code, 0) << of_248.output;
  expect_mentions(of_248, "tokenizer_config.json: model_max_length = 248, and captions are 77 tokens here");
  auto vae = read_config("changing/vae/config.json");
  vae["scaling_factor"] = 0.5;
  std::ofstream(at("changing/vae/config.json")) << vae;
  change_a_weight("changing/vae/diffusion_pytorch_model.safetensors");
  change_a_weight("changing/text_encoder/model.safetensors");
  for (const std::string options : {"", " --format ldm"}) {
    const auto out = at(options.empty() ? "of-changing" : "of-changing.safetensors");
    const auto refused = shell(millrace + " export --run " + at("run-changing") + " --out " + out + options);
    EXPECT_EQ(refused.exit_code, 2) << refused.output;
    for (const char* text : {"model.pipeline: vae.scaling_factor: 0.18215 -> 0.5", "model.pipeline: vae.weights: ",
                             "model.pipeline: text_encoder.weights: ", "allow_changes=true"})
      expect_mentions(refused, text);
    EXPECT_FALSE(fs::exists(out));
  }
  const auto scored = shell(millrace + " evaluate run.device=cpu --run " + at("run-changing") + " --out " +
                            at("score-of-changing") + " 'evaluate.metrics=[]'");
  EXPECT_EQ(scored.exit_code, 2) << scored.output;
  expect_mentions(scored, "was trained with other parts than");
  const auto allowed = shell(export_of("run", "run-changing", "of-changing") + " allow_changes=true");
  EXPECT_EQ(allowed.exit_code, 0) << allowed.output;
  expect_mentions(allowed, "goes with a part that it was not trained with: model.pipeline: vae.scaling_factor");
}

// Scratch folders are purged, and a finished run is looked at on another machine.
TEST(Folders, AFolderThatHasMovedIsNamed) {
  fs::copy(workshop() / "tiny", workshop() / "before-move", fs::copy_options::recursive);
  expect_success(
      train_on("run-moving", "before-move", "validation.batches=1 data.validation.path=" + at("shapes/00003.tar")));
  fs::rename(workshop() / "before-move", workshop() / "after-move");
  const auto evaluation = millrace + " evaluate run.device=cpu --run " + at("run-moving") + " --out " +
                          at("score-of-moving") + " 'evaluate.metrics=[]'";
  const auto exported = export_of("run", "run-moving", "of-moving");
  for (const auto& command : {exported, evaluation, evaluation + " --follow"}) {
    const auto lost = shell(command);
    EXPECT_EQ(lost.exit_code, 74) << lost.output;
    expect_mentions(lost, "was trained with model.pipeline=" + at("before-move") + ", which is no folder now");
    expect_mentions(lost, "step-00000002");
    expect_mentions(lost, "say where it is: model.pipeline=FOLDER");
  }
  expect_success(millrace + " init --preset tiny seed=7 --out " + at("not-moved"));
  for (const auto& command : {exported, evaluation}) {
    const auto other = shell(command + " model.pipeline=" + at("not-moved"));
    EXPECT_EQ(other.exit_code, 2) << other.output;
    expect_mentions(other, "was trained with other parts than");
  }
  const auto file = at("of-another-run.yaml");  // is for training
  std::ofstream(file) << "model: {pipeline: /nowhere}\n";
  for (const auto& command : {exported, evaluation, evaluation + " --follow"})
    expect_success(command + " --config " + file + " model.pipeline=" + at("after-move"));
  expect_success(export_of("run", "run-moving", "of-moving.safetensors") +
                 " --format ldm model.pipeline=" + at("after-move"));
  fs::rename(workshop() / "after-move", workshop() / "before-move");
  expect_success(export_of("run", "run-moving", "of-moving-again") + " --config " + file);
  std::ofstream(file) << "model:\n  pipeline: ???\n";  // as --print-config writes it
  expect_success(export_of("run", "run-moving", "of-moving-at-last") + " --config " + file);
  const auto idle = shell(millrace + " evaluate run.device=cpu --pipeline " + at("tiny") + " --out " + at("idle") +
                          " model.pipeline=" + at("before-move"));
  EXPECT_EQ(idle.exit_code, 2) << idle.output;
  expect_mentions(idle, "model.pipeline: is of a run's checkpoints");
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
  expect_success(export_of("run", "vae-of-all", "of-raw") + " weights=raw");
  EXPECT_NE(factor("of-raw"), factor("of-run")) << "the raw weights' latents are others than the EMA's";
  expect_mentions(shell(export_of("run", "vae-of-all", "of-both") + " weights=both"), "the variant non_ema wants");

  // A run that was killed between its last checkpoint and its end.
  fs::rename(at("vae-of-all/pipeline"), at("before"));
  fs::remove(at("vae-of-all/DONE"));
  expect_success(train_vae("vae-of-all", "tiny"));
  expect_same_files("vae-of-all/pipeline", "before", {"vae/config.json", "vae/diffusion_pytorch_model.safetensors"});
}

}  // namespace
}  // namespace millrace::e2e
