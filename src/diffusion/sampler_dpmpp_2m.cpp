#include "samplers.h"

namespace millrace {
namespace {

// Lu et al., "DPM-Solver++: Fast Solver for Guided Sampling of Diffusion Probabilistic Models", algorithm 2 (2M).
class Dpmpp2m final : public Sampler {
 public:
  Dpmpp2m(const SchedulerConfig& config, SigmaPlan plan)
      : Sampler(std::move(plan.timesteps)), sigmas_(std::move(plan.sigmas)), config_(config) {}

  torch::Tensor step(const torch::Tensor& output, std::size_t call, const torch::Tensor& sample) override {
    const NoiseLevel here = level(call), next = level(call + 1);
    const double h = next.lambda - here.lambda;
    const double gain = -next.alpha * std::expm1(-h);
    const torch::Tensor x0 = predicted_x0(config_.prediction, output, sample, here.alpha, here.sigma);
    torch::Tensor x = next.sigma / here.sigma * sample + gain * x0;
    if (!is_first_order(call)) {
      const double r = (here.lambda - level(call - 1).lambda) / h;
      x = x + gain / (2 * r) * (x0 - previous_x0_);
    }
    previous_x0_ = x0;
    return x;
  }

 private:
  NoiseLevel level(std::size_t call) const { return NoiseLevel::of_ratio(sigmas_.at(call)); }

  // The last step to sigma 0 has infinite h, so only the first order makes sense there.
  bool is_first_order(std::size_t call) const {
    const std::size_t calls = timesteps().size();
    const bool lower_at_end = config_.euler_at_final || (config_.lower_order_final && calls < 15);
    return call == 0 || (call + 1 == calls && (lower_at_end || !config_.final_sigma_is_min));
  }

  std::vector<float> sigmas_;
  SchedulerConfig config_;
  torch::Tensor previous_x0_;
};

}  // namespace

std::unique_ptr<Sampler> make_dpmpp_2m(const SchedulerConfig& config, int steps) {
  return std::make_unique<Dpmpp2m>(config, plan_sigmas(config, steps));
}

}  // namespace millrace
