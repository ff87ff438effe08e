// Pipeline folders as people have them: with any of diffusers' schedulers.
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

}  // namespace
}  // namespace millrace::e2e
