#include "millrace/diffusion/noise_schedule.h"

#include <torch/torch.h>

#include <cmath>
#include <numbers>

namespace millrace {
namespace {

// Nichol and Dhariwal's cosine schedule: alpha_bar(t) = cos^2((t + 0.008) / 1.008 * pi / 2), betas cut at 0.999.
torch::Tensor cosine_betas(int size) {
  const auto alpha_bar = [](double t) {
    const double cosine = std::cos((t + 0.008) / 1.008 * std::numbers::pi / 2);
    return cosine * cosine;
  };
  torch::Tensor betas = torch::empty({size}, torch::kFloat32);
  for (int i = 0; i < size; ++i) {
    const double ratio = alpha_bar((i + 1.0) / size) / alpha_bar(static_cast<double>(i) / size);
    betas[i] = std::min(1 - ratio, 0.999);
  }
  return betas;
}

torch::Tensor plain_betas(const SchedulerConfig& config) {
  if (!config.trained_betas.empty()) return torch::tensor(config.trained_betas);
  const int size = config.num_train_timesteps;
  switch (config.beta_schedule) {
    case BetaSchedule::linear:
      return torch::linspace(config.beta_start, config.beta_end, size, torch::kFloat32);
    case BetaSchedule::scaled_linear:
      return torch::linspace(std::sqrt(config.beta_start), std::sqrt(config.beta_end), size, torch::kFloat32).square();
    case BetaSchedule::squaredcos_cap_v2:
      return cosine_betas(size);
  }
  return {};
}

// Shifts sqrt(alpha_bar) so that the last is zero and stretches it so that the first stays.
torch::Tensor rescale_to_zero_terminal_snr(const torch::Tensor& betas) {
  const torch::Tensor root = (1 - betas).cumprod(0).sqrt();
  const torch::Tensor first = root[0], last = root[-1];
  const torch::Tensor alphas_cumprod = ((root - last) * (first / (first - last))).square();
  const torch::Tensor ratios = alphas_cumprod.slice(0, 1) / alphas_cumprod.slice(0, 0, -1);
  return 1 - torch::cat({alphas_cumprod.slice(0, 0, 1), ratios});
}

std::vector<float> to_vector(const torch::Tensor& tensor) {
  return {tensor.data_ptr<float>(), tensor.data_ptr<float>() + tensor.numel()};
}

}  // namespace

NoiseSchedule::NoiseSchedule(const SchedulerConfig& config) {
  const torch::NoGradGuard no_grad;
  torch::Tensor betas = plain_betas(config);
  if (config.rescale_betas_zero_snr) betas = rescale_to_zero_terminal_snr(betas);
  betas_ = to_vector(betas);
  alphas_cumprod_ = to_vector((1 - betas).cumprod(0));
}

double NoiseSchedule::snr(int timestep) const {
  const double alpha_bar = alphas_cumprod_.at(timestep);
  return alpha_bar / (1 - alpha_bar);
}

}  // namespace millrace
