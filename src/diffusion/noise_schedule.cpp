#include "millrace/diffusion/noise_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "millrace/core/error.h"

namespace millrace {
namespace {

// Nichol and Dhariwal's cosine schedule: alpha_bar(t) = cos^2((t + 0.008) / 1.008 * pi / 2), betas cut at 0.999.
std::vector<double> cosine_betas(int size) {
  const auto alpha_bar = [](double t) {
    const double cosine = std::cos((t + 0.008) / 1.008 * std::numbers::pi / 2);
    return cosine * cosine;
  };
  std::vector<double> betas(size);
  for (int i = 0; i < size; ++i)
    betas[i] = std::min(1 - alpha_bar((i + 1.0) / size) / alpha_bar(static_cast<double>(i) / size), 0.999);
  return betas;
}

std::vector<double> evenly_spaced(double first, double last, int size) {
  std::vector<double> values(size);
  for (int i = 0; i < size; ++i) values[i] = first + (last - first) * i / (size - 1);
  return values;
}

std::vector<double> plain_betas(const SchedulerConfig& config) {
  if (!config.trained_betas.empty()) return {config.trained_betas.begin(), config.trained_betas.end()};
  const int size = config.num_train_timesteps;
  switch (config.beta_schedule) {
    case BetaSchedule::linear:
      return evenly_spaced(config.beta_start, config.beta_end, size);
    case BetaSchedule::scaled_linear: {
      std::vector<double> roots = evenly_spaced(std::sqrt(config.beta_start), std::sqrt(config.beta_end), size);
      for (double& root : roots) root *= root;
      return roots;
    }
    case BetaSchedule::squaredcos_cap_v2:
      return cosine_betas(size);
  }
  throw bug("a beta schedule without betas");
}

std::vector<double> products_of_alphas(const std::vector<double>& betas) {
  std::vector<double> products;
  double product = 1;
  for (const double beta : betas) products.push_back(product *= 1 - beta);
  return products;
}

// Shifts sqrt(alpha_bar) so that the last is zero and stretches it so that the first stays.
void rescale_to_zero_terminal_snr(std::vector<double>& alphas_cumprod) {
  const double first = std::sqrt(alphas_cumprod.front()), last = std::sqrt(alphas_cumprod.back());
  for (double& alpha_bar : alphas_cumprod) {
    const double root = (std::sqrt(alpha_bar) - last) * (first / (first - last));
    alpha_bar = root * root;
  }
}

}  // namespace

NoiseSchedule::NoiseSchedule(const SchedulerConfig& config) : alphas_cumprod_(products_of_alphas(plain_betas(config))) {
  if (config.rescale_betas_zero_snr) rescale_to_zero_terminal_snr(alphas_cumprod_);
}

double NoiseSchedule::snr(int timestep) const {
  const double alpha_bar = alphas_cumprod_.at(timestep);
  return alpha_bar / (1 - alpha_bar);
}

}  // namespace millrace
