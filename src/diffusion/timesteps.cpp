#include "timesteps.h"

#include <algorithm>
#include <cmath>

#include "millrace/core/error.h"
#include "millrace/diffusion/noise_schedule.h"

namespace millrace {
namespace {

double round_half_even(double x) {
  return std::nearbyint(x);
}

// A whole number stays the same also where rounding errors have made it smaller.
double cut(double x) {
  return std::floor(x + 1e-6);
}

// Ascending and evenly spaced over the whole range, both ends included.
std::vector<double> linspace(double last, int count) {
  std::vector<double> values(count, 0.0);
  const double step = count > 1 ? last / (count - 1) : 0;
  for (int i = 0; i < count; ++i) values[i] = i * step;
  if (count > 1) values.back() = last;
  return values;
}

std::vector<double> ascending_timesteps(const SchedulerConfig& config, int steps) {
  const int total = config.num_train_timesteps;
  // The multistep solvers lay out one point more and leave out the lowest, where they arrive.
  const SchedulerClass c = config.scheduler_class;
  const int extra = is_multistep(c) ? 1 : 0;
  std::vector<double> t;
  switch (config.timestep_spacing) {
    case TimestepSpacing::linspace:
      t = linspace(total - 1, steps + extra);
      if (c != SchedulerClass::euler_discrete) std::ranges::transform(t, t.begin(), round_half_even);
      t.erase(t.begin(), t.begin() + extra);
      break;
    case TimestepSpacing::leading: {
      const int ratio = total / (steps + extra);
      if (ratio == 0) return {};  // all of them would be one timestep
      for (int i = extra; i < steps + extra; ++i) t.push_back(i * ratio + config.steps_offset);
      break;
    }
    case TimestepSpacing::trailing: {
      const double stride = (total - static_cast<double>(total) / steps) - total;  // rounded as numpy.arange does
      for (int i = steps; i-- > 0;) t.push_back(round_half_even(total + i * stride) - 1);
      break;
    }
  }
  return t;
}

// The sigmas of all timesteps, ascending.
std::vector<double> all_sigmas(const SchedulerConfig& config) {
  std::vector<double> sigmas;
  const NoiseSchedule schedule(config);
  for (const double a : schedule.alphas_cumprod()) sigmas.push_back(std::sqrt((1 - a) / a));
  // Zero terminal SNR: not infinity but the largest sigma that half precision can stand.
  if (config.rescale_betas_zero_snr) sigmas.back() = std::sqrt((1 - 0x1p-24) / 0x1p-24);
  return sigmas;
}

double interpolate(const std::vector<double>& values, double position) {
  const auto below = std::min(static_cast<std::size_t>(position), values.size() - 2);
  const double slope = values[below + 1] - values[below];
  return slope * (position - static_cast<double>(below)) + values[below];
}

// Inverse of `interpolate` in log sigma.
double timestep_of(double sigma, const std::vector<double>& sigmas) {
  const double log_sigma = std::log(std::max(sigma, 1e-10));
  const auto log_at = [&](std::size_t i) { return std::log(sigmas[i]); };
  std::size_t low = 0;
  while (low + 2 < sigmas.size() && log_at(low + 1) <= log_sigma) ++low;
  const double share = (log_at(low) - log_sigma) / (log_at(low) - log_at(low + 1));
  return static_cast<double>(low) + std::clamp(share, 0.0, 1.0);
}

// Karras et al., "Elucidating the Design Space of Diffusion-Based Generative Models", equation 5.
std::vector<double> karras_sigmas(double sigma_min, double sigma_max, int steps) {
  constexpr double rho = 7;
  const double low = std::pow(sigma_min, 1 / rho), high = std::pow(sigma_max, 1 / rho);
  std::vector<double> sigmas;
  for (const double ramp : linspace(1, steps)) sigmas.push_back(std::pow(high + ramp * (low - high), rho));
  return sigmas;
}

}  // namespace

std::vector<double> plan_timesteps(const SchedulerConfig& config, int steps) {
  if (steps < 1) fail(Exit::usage, "generate.steps = {}: at least one step is needed", steps);
  std::vector<double> t;
  if (steps <= config.num_train_timesteps) t = ascending_timesteps(config, steps);
  if (t.empty() || t.back() >= config.num_train_timesteps)
    fail(Exit::usage, "{} sampling steps do not fit into the {} timesteps of the {}", steps, config.num_train_timesteps,
         to_string(config.scheduler_class));
  std::ranges::reverse(t);
  return t;
}

SigmaPlan plan_sigmas(const SchedulerConfig& config, int steps) {
  const std::vector<double> table = all_sigmas(config);
  SigmaPlan plan;
  plan.timesteps = plan_timesteps(config, steps);
  std::vector<double> sigmas;
  for (const double t : plan.timesteps) sigmas.push_back(interpolate(table, t));
  double last = config.final_sigma_is_min ? table.front() : 0;

  if (config.use_karras_sigmas) {
    const bool euler = config.scheduler_class == SchedulerClass::euler_discrete;
    // Here diffusers cuts where it otherwise rounds.
    const bool cuts = config.scheduler_class == SchedulerClass::dpmsolver_multistep &&
                      config.beta_schedule == BetaSchedule::squaredcos_cap_v2;
    sigmas =
        euler ? karras_sigmas(sigmas.back(), sigmas.front(), steps) : karras_sigmas(table.front(), table.back(), steps);
    for (int i = 0; i < steps; ++i) {
      const double t = timestep_of(sigmas[i], table);
      plan.timesteps[i] = euler ? t : cuts ? cut(t) : round_half_even(t);
    }
    if (config.final_sigma_is_min && config.scheduler_class == SchedulerClass::unipc_multistep) last = sigmas.back();
  }
  sigmas.push_back(last);
  plan.sigmas.assign(sigmas.begin(), sigmas.end());
  return plan;
}

}  // namespace millrace
