#include <gtest/gtest.h>

#include <cmath>

#include "devices.h"
#include "millrace/core/error.h"
#include "millrace/diffusion/noise_schedule.h"
#include "millrace/diffusion/sampler.h"
#include "reference.h"
#include "timesteps.h"

namespace millrace {
namespace {

// The formula of scripts/goldens/diffusion.py in the place of a U-Net.
torch::Tensor model(const torch::Tensor& x, double t) {
  return torch::tanh(0.8 * x + 0.3 * std::sin(0.01 * t)) + 0.2 * torch::cos(1.3 * x + 0.002 * t);
}

torch::Tensor sample(Sampler& sampler, torch::Device device) {
  const torch::Tensor i = torch::arange(24, torch::kFloat64);
  const torch::Tensor noise = (1.2 * torch::sin(1.7 * i + 0.3)).to(torch::kFloat32).reshape({1, 4, 2, 3});
  torch::Tensor x = noise.to(device) * sampler.initial_sigma();
  for (std::size_t call = 0; call < sampler.timesteps().size(); ++call)
    x = sampler.step(model(sampler.scale_model_input(x, call), sampler.timesteps()[call]), call, x);
  return x;
}

// Against diffusers in double precision; in its own float32 the numbers depend on the processor.
TEST(NoiseSchedule, EqualsDiffusers) {
  for (const auto& row : reference().at("schedules")) {
    SCOPED_TRACE(row.at("config").dump());
    const NoiseSchedule schedule(SchedulerConfig::from_json(row.at("config")));
    const auto& timesteps = row.at("timesteps");
    for (std::size_t i = 0; i < timesteps.size(); ++i) {
      const int t = timesteps[i];
      const double alpha_bar = row.at("alphas_cumprod")[i], snr = row.at("snr")[i];
      // A thousand factors, each rounded to 2^-53; near zero terminal SNR a difference makes it 300 times as much.
      EXPECT_NEAR(schedule.alphas_cumprod()[t], alpha_bar, 1e-10 * alpha_bar) << t;
      EXPECT_NEAR(schedule.snr(t), snr, 7 * 0x1p-24 * snr) << t;  // diffusers squares a quotient of two fp32 roots
    }
  }
}

// Computed independently in double precision.
TEST(NoiseSchedule, KnownNumbersOfStableDiffusion) {
  const auto expect_close = [](double value, double known) { EXPECT_NEAR(value, known, 2e-6 * known); };
  const NoiseSchedule plain(SchedulerConfig::from_json(reference().at("schedules")[0].at("config")));
  expect_close(plain.alphas_cumprod()[0], 0.99915);
  expect_close(plain.alphas_cumprod()[500], 0.2763327);
  expect_close(plain.alphas_cumprod()[999], 0.004660099);
  expect_close(plain.snr(999), 0.00468192);
  expect_close(1 / std::sqrt(plain.snr(999)), 14.614641);
  EXPECT_NEAR(plain.snr(0), 1175.47, 0.05);
  EXPECT_NEAR(1 / std::sqrt(plain.snr(0)), 0.0291672, 1e-6);
  const NoiseSchedule zero(SchedulerConfig::from_json(reference().at("schedules")[3].at("config")));
  expect_close(zero.alphas_cumprod()[500], 0.2410188);
  EXPECT_NEAR(zero.alphas_cumprod()[998], 1.96789e-7, 1e-11);
  EXPECT_EQ(zero.alphas_cumprod()[999], 0);
}

TEST(Timesteps, EveryNumberOfSteps) {
  const auto file = reference().at("samplers")[0].at("config");
  for (const auto& [name, sums] : reference().at("timestep_sums").items()) {
    SCOPED_TRACE(name);
    const std::size_t space = name.find(' ');
    auto json = file;
    json["timestep_spacing"] = name.substr(space + 1);
    const auto config = SchedulerConfig::from_json(json).with_class(scheduler_class(name.substr(0, space)));
    for (std::size_t n = 1; n <= sums.size(); ++n) {
      const std::vector<double> timesteps = plan_timesteps(config, static_cast<int>(n));
      ASSERT_EQ(timesteps.size(), n);
      double sum = 0;
      for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(i + 1) * timesteps[i];
      ASSERT_NEAR(sum, sums[n - 1].get<double>(), 1e-6 * sum) << n << " steps";
    }
  }
}

TEST(Timesteps, TooManyOrTooFewStepsAreRefused) {
  const auto config = SchedulerConfig::from_json(reference().at("samplers")[0].at("config"));
  EXPECT_THROW(plan_timesteps(config, 0), Error);
  EXPECT_THROW(plan_timesteps(config, 1000), Error);  // leading with an offset of 1 would end at 1000
  EXPECT_THROW(plan_timesteps(config, 1001), Error);
  EXPECT_EQ(plan_timesteps(config, 999).size(), 999);
  // These lay out one more than they take: no distance is left between 1000.
  for (const auto solver : {SchedulerClass::dpmsolver_multistep, SchedulerClass::unipc_multistep}) {
    auto leading = config.with_class(solver);
    leading.timestep_spacing = TimestepSpacing::leading;
    EXPECT_EQ(plan_timesteps(leading, 998).front(), 999);
    EXPECT_THROW(plan_timesteps(leading, 1000), Error);
  }
}

class SamplerOnDevice : public test::OnDevice {};
MILLRACE_ON_DEVICES(SamplerOnDevice);

TEST_P(SamplerOnDevice, EqualsDiffusers) {
  // tanh and cos of the model are known to some 2^-22 on a GPU.
  const double allowance = is_cuda() ? 5 : 1;
  double worst = 0;
  for (const auto& row : reference().at("samplers")) {
    SCOPED_TRACE(row.at("to").get<std::string>() + " " + row.at("steps").dump() + " " + row.at("config").dump());
    const auto config =
        SchedulerConfig::from_json(row.at("config")).with_class(scheduler_class(row.at("to").get<std::string>()));
    const auto sampler = make_sampler(config, row.at("steps"));
    const auto timesteps = row.at("timesteps").get<std::vector<double>>();
    ASSERT_EQ(sampler->timesteps().size(), timesteps.size());
    for (std::size_t i = 0; i < timesteps.size(); ++i) {
      EXPECT_NEAR(sampler->timesteps()[i], timesteps[i], 0x1p-15);  // some of diffusers' pass through fp32
    }
    const double sigma = row.at("initial_sigma");
    EXPECT_NEAR(sampler->initial_sigma(), sigma, 1e-6 * sigma);
    const torch::Tensor expected = torch::tensor(row.at("final").get<std::vector<float>>());
    const double error =
        ((sample(*sampler, device()).flatten().cpu() - expected).abs().max() / expected.abs().max()).item<double>();
    // Euler starts at sigma 4096 then: one rounding of a sample of that size is 4e-5 of the result.
    const bool huge_sigma = sampler->initial_sigma() > 1000;
    EXPECT_LT(error, allowance * (huge_sigma ? 1e-4 : 1e-5));
    if (!huge_sigma) worst = std::max(worst, error);
  }
  RecordProperty("worst_relative_error", fmt::format("{:.2g}", worst));
}

TEST(Sampler, RefusesWhatCannotBeSampled) {
  auto json = reference().at("samplers")[0].at("config");
  for (const char* name : {"DDPMScheduler", "EulerAncestralDiscreteScheduler"}) {
    json["_class_name"] = name;
    EXPECT_THROW(make_sampler(SchedulerConfig::from_json(json), 20), Error);
  }
  json["_class_name"] = "DPMSolverMultistepScheduler";
  json["solver_order"] = 3;
  EXPECT_THROW(make_sampler(SchedulerConfig::from_json(json), 20), Error);
  json.erase("solver_order");
  json["_class_name"] = "DDIMScheduler";
  json["rescale_betas_zero_snr"] = true;
  EXPECT_THROW(make_sampler(SchedulerConfig::from_json(json), 20), Error);
  json["_class_name"] = "PNDMScheduler";
  json["skip_prk_steps"] = false;
  EXPECT_THROW(make_sampler(SchedulerConfig::from_json(json), 3), Error);
}

}  // namespace
}  // namespace millrace
