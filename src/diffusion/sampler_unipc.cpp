#include <algorithm>

#include "samplers.h"

namespace millrace {
namespace {

// Zhao et al., "UniPC: A Unified Predictor-Corrector Framework for Fast Sampling of Diffusion Models", order 2 in x_0
// with B_2(h) = e^h - 1: every new x_0 first corrects the sample it was computed at, then predicts the next one.
class UniPc final : public Sampler {
 public:
  UniPc(const SchedulerConfig& config, SigmaPlan plan)
      : Sampler(std::move(plan.timesteps)), sigmas_(std::move(plan.sigmas)), prediction_(config.prediction) {}

  torch::Tensor step(const torch::Tensor& output, std::size_t call, const torch::Tensor& sample) override {
    const NoiseLevel here = level(call);
    const torch::Tensor x0 = predicted_x0(prediction_, output, sample, here.alpha, here.sigma);
    corrected_ = call == 0 ? sample : corrected(x0, call);
    older_x0_ = x0_;
    x0_ = x0;
    // The first and the last step have too few neighbours for order 2.
    order_ = call == 0 || call + 1 == timesteps().size() ? 1 : 2;
    return predicted(call);
  }

 private:
  NoiseLevel level(std::size_t call) const { return NoiseLevel::of_ratio(sigmas_.at(call)); }

  // The step from `call` to `call + 1` as predictor and corrector share it.
  struct Step {
    double h, gain;   // gain = alpha (1 - e^-h)
    double r;         // distance back to the older x_0, in units of h; negative
    torch::Tensor x;  // with x_0 held constant
  };
  Step step_from(std::size_t call) const {
    const NoiseLevel here = level(call), next = level(call + 1);
    const double h = next.lambda - here.lambda;
    const double gain = -next.alpha * std::expm1(-h);
    const double r = order_ == 2 ? (level(call - 1).lambda - here.lambda) / h : 0;
    return {h, gain, r, next.sigma / here.sigma * corrected_ + gain * x0_};
  }

  torch::Tensor predicted(std::size_t call) const {
    const Step step = step_from(call);
    return order_ == 1 ? step.x : step.x + step.gain * 0.5 / step.r * (older_x0_ - x0_);
  }

  // The sample of `call`, stepped anew from the one before now that its x_0 is known.
  torch::Tensor corrected(const torch::Tensor& new_x0, std::size_t call) const {
    const Step step = step_from(call - 1);
    if (order_ == 1) return step.x + step.gain * 0.5 * (new_x0 - x0_);
    const double b = std::expm1(-step.h);
    const double phi_1 = b / -step.h - 1, phi_2 = phi_1 / -step.h - 0.5;
    const double b_1 = phi_1 / b, b_2 = 2 * phi_2 / b;
    // rho_old + rho_new = b_1, r rho_old + rho_new = b_2
    const double rho_old = (b_1 - b_2) / (1 - step.r), rho_new = b_1 - rho_old;
    return step.x + step.gain * (rho_old / step.r * (older_x0_ - x0_) + rho_new * (new_x0 - x0_));
  }

  std::vector<float> sigmas_;
  Prediction prediction_;
  int order_ = 1;            // of the latest prediction
  torch::Tensor corrected_;  // the latest corrected sample
  torch::Tensor x0_, older_x0_;
};

}  // namespace

std::unique_ptr<Sampler> make_unipc(const SchedulerConfig& config, int steps) {
  return std::make_unique<UniPc>(config, plan_sigmas(config, steps));
}

}  // namespace millrace
