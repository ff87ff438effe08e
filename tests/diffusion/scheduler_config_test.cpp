#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.h"
#include "millrace/diffusion/scheduler_config.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(SchedulerConfig, AbsentKeysTakeTheDefaultsOfTheClass) {
  const auto euler = SchedulerConfig::from_json({{"_class_name", "EulerDiscreteScheduler"}});
  EXPECT_EQ(euler.timestep_spacing, TimestepSpacing::linspace);
  EXPECT_EQ(euler.beta_schedule, BetaSchedule::linear);
  EXPECT_DOUBLE_EQ(euler.beta_start, 1e-4);
  EXPECT_EQ(euler.prediction, Prediction::epsilon);
  const auto ddim = SchedulerConfig::from_json({{"_class_name", "DDIMScheduler"}});
  EXPECT_EQ(ddim.timestep_spacing, TimestepSpacing::leading);
  EXPECT_TRUE(ddim.set_alpha_to_one);
  const auto pndm = SchedulerConfig::from_json({{"_class_name", "PNDMScheduler"}});
  EXPECT_FALSE(pndm.set_alpha_to_one);
  EXPECT_FALSE(pndm.skip_prk_steps);
}

TEST(SchedulerConfig, ThePipelineSetsOffsetAndClipping) {
  const auto ddim = SchedulerConfig::from_json({{"_class_name", "DDIMScheduler"}, {"clip_sample", true}});
  EXPECT_EQ(ddim.steps_offset, 1);
  EXPECT_FALSE(ddim.clip_sample);
  // clip_sample stands in the file and carries over; steps_offset does not, and another class has its own default.
  const auto ddpm = ddim.with_class(SchedulerClass::ddpm);
  EXPECT_FALSE(ddpm.clip_sample);
  EXPECT_EQ(ddpm.steps_offset, 0);
}

TEST(SchedulerConfig, AnotherClassKeepsWhatTheFileSays) {
  const Json file = {{"_class_name", "DDIMScheduler"},
                     {"beta_schedule", "scaled_linear"},
                     {"prediction_type", "v_prediction"},
                     {"steps_offset", 1},
                     {"skip_prk_steps", true},
                     {"rescale_betas_zero_snr", true},
                     {"algorithm_type", "dpmsolver++"}};
  const auto ddim = SchedulerConfig::from_json(file);
  const auto pndm = ddim.with_class(SchedulerClass::pndm);
  EXPECT_TRUE(pndm.skip_prk_steps);  // unknown to DDIM, but in its file
  EXPECT_EQ(pndm.prediction, Prediction::v_prediction);
  EXPECT_FALSE(pndm.rescale_betas_zero_snr);  // PNDM has no such key
  EXPECT_FALSE(pndm.set_alpha_to_one);        // DDIM's default does not carry over
  EXPECT_TRUE(pndm.with_class(SchedulerClass::unipc_multistep).rescale_betas_zero_snr);
}

TEST(SchedulerConfig, WritesEveryKeyOfTheClassAndKeepsTheRest) {
  const auto config = SchedulerConfig::from_json({{"_class_name", "PNDMScheduler"}, {"my_note", "kept"}});
  const auto json = config.with_keys({{"prediction_type", "v_prediction"}}).to_json();
  EXPECT_EQ(json.at("my_note"), "kept");
  EXPECT_EQ(json.at("steps_offset"), 1);
  EXPECT_EQ(json.at("clip_sample"), false);
  EXPECT_EQ(json.at("timestep_spacing"), "leading");
  EXPECT_EQ(json.at("prediction_type"), "v_prediction");
  const auto again = SchedulerConfig::from_json(Json::parse(json.dump()));
  EXPECT_EQ(again.to_json(), json);
}

TEST(SchedulerConfig, ReadsPythonsInfinity) {
  for (const char* clip : {"-Infinity", "null"}) {  // null: of a writer that has no word for it
    const auto text =
        fmt::format(R"({{"_class_name": "DPMSolverMultistepScheduler", "lambda_min_clipped": {}}})", clip);
    const auto config = SchedulerConfig::from_text(text, "scheduler_config.json");
    EXPECT_EQ(config.scheduler_class, SchedulerClass::dpmsolver_multistep);
    EXPECT_FALSE(config.to_json().contains("lambda_min_clipped"));
    EXPECT_EQ(error_of([&] { check_settings(config); }), "no error");
  }
}

// Neither takes a stack as deep as the file is long.
TEST(SchedulerConfig, ALongOrDeepFileIsNoCrash) {
  const std::string begin = R"({"_class_name": "DDIMScheduler", "lambda_min_clipped")";
  const auto spaced = SchedulerConfig::from_text(begin + std::string(1'000'000, ' ') + ": null}", "a.json");
  EXPECT_EQ(spaced.scheduler_class, SchedulerClass::ddim);
  const auto deep = begin + ": " + std::string(300'000, '[') + std::string(300'000, ']') + "}";
  EXPECT_THAT(error_of([&] { SchedulerConfig::from_text(deep, "a.json"); }), HasSubstr("a.json: more than 64 levels"));
}

TEST(SchedulerConfig, TimestepsHaveBounds) {
  const auto read = [](const char* timesteps) {
    return SchedulerConfig::from_text(
        std::string(R"({"_class_name": "DDIMScheduler", "num_train_timesteps": )") + timesteps + "}", "a.json");
  };
  EXPECT_EQ(read("1000000").num_train_timesteps, 1'000'000);
  for (const char* timesteps : {"1", "1000001", "2000000000", "4294968296", "18446744073709551615"})
    EXPECT_THAT(error_of([&] { read(timesteps); }),
                testing::AllOf(HasSubstr("a.json: DDIMScheduler: num_train_timesteps"), HasSubstr("2 to 1000000")))
        << timesteps;
}

TEST(SchedulerConfig, RefusesByName) {
  const auto refused = [](const char* name, const char* key, Json value) {
    return error_of([&] { SchedulerConfig::from_json({{"_class_name", name}, {key, value}}); });
  };
  EXPECT_THAT(refused("DDIMScheduler", "prediction_type", "sample"), HasSubstr("prediction_type = sample"));
  EXPECT_THAT(refused("PNDMScheduler", "beta_schedule", "sigmoid"), HasSubstr("beta_schedule = sigmoid"));
  EXPECT_THAT(refused("PNDMScheduler", "steps_offset", "one"), HasSubstr("steps_offset has the wrong type"));
  EXPECT_THAT(error_of([] { SchedulerConfig::from_text("{", "a/scheduler_config.json"); }),
              HasSubstr("a/scheduler_config.json"));
  EXPECT_THAT(error_of([] { SchedulerConfig::from_json(Json::object()); }), HasSubstr("_class_name"));
}

// Training needs the noise alone.
TEST(SchedulerConfig, SettingsThatOnlySamplingNeedsAreRefusedWhereItBegins) {
  const auto refused = [](const char* name, const char* key, Json value) {
    const auto config = SchedulerConfig::from_json({{"_class_name", name}, {key, value}});
    EXPECT_EQ(config.to_json().at(key), nlohmann::json::parse(value.dump()));
    return error_of([&] { check_settings(config); });
  };
  EXPECT_THAT(refused("DDIMScheduler", "thresholding", true), HasSubstr("thresholding = true"));
  EXPECT_THAT(refused("EulerDiscreteScheduler", "use_beta_sigmas", true), HasSubstr("use_beta_sigmas"));
  EXPECT_THAT(refused("DPMSolverMultistepScheduler", "algorithm_type", "sde-dpmsolver++"),
              HasSubstr("sde-dpmsolver++"));
  EXPECT_THAT(refused("UniPCMultistepScheduler", "solver_order", 3), HasSubstr("solver_order = 3"));
  EXPECT_EQ(refused("DDIMScheduler", "thresholding", false), "no error");
}

// A DDPM's file always has a variance_type, and DPM++ 2M takes such a file.
TEST(SchedulerConfig, OnlyALearnedVarianceIsNotForDpmSolver) {
  const auto answer_to = [](const char* variance) {
    const auto ddpm = SchedulerConfig::from_json({{"_class_name", "DDPMScheduler"}, {"variance_type", variance}});
    return error_of([&] { check_settings(ddpm.with_class(SchedulerClass::dpmsolver_multistep)); });
  };
  for (const char* variance : {"fixed_small", "fixed_small_log", "fixed_large", "fixed_large_log"})
    EXPECT_EQ(answer_to(variance), "no error") << variance;
  for (const char* variance : {"learned", "learned_range"})
    EXPECT_THAT(answer_to(variance), HasSubstr(std::string("variance_type = \"") + variance)) << variance;
}

// As diffusers 0.42.1 writes it.
const Json heun = {{"_class_name", "HeunDiscreteScheduler"},
                   {"_diffusers_version", "0.42.1"},
                   {"beta_end", 0.012},
                   {"beta_schedule", "scaled_linear"},
                   {"beta_start", 0.00085},
                   {"clip_sample", false},
                   {"clip_sample_range", 1.0},
                   {"num_train_timesteps", 1000},
                   {"prediction_type", "epsilon"},
                   {"steps_offset", 0},
                   {"timestep_spacing", "linspace"},
                   {"trained_betas", nullptr},
                   {"use_beta_sigmas", false},
                   {"use_exponential_sigmas", false},
                   {"use_karras_sigmas", true}};

TEST(SchedulerConfig, AnyClassIsReadThatTellsItsNoise) {
  const auto config = SchedulerConfig::from_json(heun);
  EXPECT_EQ(config.scheduler_class, SchedulerClass::other);
  EXPECT_EQ(config.class_name(), "HeunDiscreteScheduler");
  EXPECT_EQ(config.beta_schedule, BetaSchedule::scaled_linear);
  EXPECT_DOUBLE_EQ(config.beta_end, 0.012);

  auto expected = nlohmann::json::parse(heun.dump());
  expected["prediction_type"] = "v_prediction";
  expected["steps_offset"] = 1;  // as StableDiffusionPipeline sets it
  EXPECT_EQ(config.with_keys({{"prediction_type", "v_prediction"}}).to_json(), expected);

  const auto ddim = config.with_class(SchedulerClass::ddim);
  EXPECT_EQ(ddim.class_name(), "DDIMScheduler");
  EXPECT_EQ(ddim.timestep_spacing, TimestepSpacing::linspace);
  EXPECT_EQ(error_of([&] { check_settings(ddim); }), "no error");
}

// diffusers warns of a file without it.
TEST(SchedulerConfig, WritesTheOffsetOfAnyClass) {
  auto file = heun;
  file.erase("steps_offset");
  const auto json = SchedulerConfig::from_json(file).to_json();
  EXPECT_EQ(json.at("steps_offset"), 1);
  EXPECT_EQ(json.size(), heun.size());
}

TEST(SchedulerConfig, AnExportTellsAnotherClassMoreThanTheFile) {
  const auto pndm = SchedulerConfig::from_json({{"_class_name", "PNDMScheduler"}, {"beta_end", 0.012}});
  EXPECT_EQ(pndm.with_class(SchedulerClass::euler_discrete).timestep_spacing, TimestepSpacing::linspace);
  const auto exported = pndm.as_exported();
  EXPECT_EQ(exported.with_class(SchedulerClass::euler_discrete).timestep_spacing, TimestepSpacing::leading);
  EXPECT_EQ(exported.to_json(), pndm.to_json());
}

TEST(SchedulerConfig, AClassThatIsNotKnownIsNotGuessedAt) {
  const auto flow = error_of([] {
    SchedulerConfig::from_json({{"_class_name", "FlowMatchEulerDiscreteScheduler"}, {"num_train_timesteps", 1000}});
  });
  EXPECT_EQ(flow, "scheduler class \"FlowMatchEulerDiscreteScheduler\" is not known, and its file has no beta_start");
  auto sigmoid = heun;
  sigmoid["beta_schedule"] = "sigmoid";
  EXPECT_EQ(error_of([&] { SchedulerConfig::from_json(sigmoid); }),
            "HeunDiscreteScheduler: beta_schedule = sigmoid is not supported");
}

}  // namespace
}  // namespace millrace
