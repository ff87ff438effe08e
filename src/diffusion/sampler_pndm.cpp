#include "millrace/core/error.h"
#include "samplers.h"

namespace millrace {
namespace {

// Liu et al., "Pseudo Numerical Methods for Diffusion Models on Manifolds": linear multistep over the last four
// outputs. It starts either with Runge-Kutta steps (four calls each, for the first three steps) or, as Stable Diffusion
// does with skip_prk_steps, by taking its first step twice.
class Pndm final : public Sampler {
 public:
  Pndm(const SchedulerConfig& config, std::vector<int> runge_kutta, std::vector<int> multistep, int stride)
      : Sampler(joined(runge_kutta, multistep)),
        alpha_bar_(config),
        prediction_(config.prediction),
        runge_kutta_calls_(runge_kutta.size()),
        stride_(stride) {}

  torch::Tensor step(const torch::Tensor& output, std::size_t call, const torch::Tensor& sample) override {
    return call < runge_kutta_calls_ ? runge_kutta_step(output, call, sample) : multistep_step(output, call, sample);
  }

 private:
  static std::vector<double> joined(const std::vector<int>& first, const std::vector<int>& second) {
    std::vector<double> all(first.begin(), first.end());
    all.insert(all.end(), second.begin(), second.end());
    return all;
  }

  int timestep(std::size_t call) const { return static_cast<int>(timesteps().at(call)); }

  torch::Tensor runge_kutta_step(const torch::Tensor& output, std::size_t call, const torch::Tensor& sample) {
    const int stage = static_cast<int>(call % 4);
    const int from = timestep(call - stage);
    const int to = timestep(call) - (stage % 2 == 0 ? stride_ / 2 : 0);
    if (stage == 0) {
      history_.push_back(output);
      origin_ = sample;
      weighted_ = output / 6;
    } else {
      weighted_ = weighted_ + output / (stage == 3 ? 6 : 3);
    }
    return transfer(origin_, stage == 3 ? weighted_ : output, from, to);
  }

  torch::Tensor multistep_step(const torch::Tensor& output, std::size_t call, const torch::Tensor& sample) {
    if (call == 1) {  // the first step once more, from where it began, with the mean of both its ends
      return transfer(origin_, (output + history_.back()) / 2, timestep(call) + stride_, timestep(call));
    }
    if (call == 0) origin_ = sample;
    history_.push_back(output);
    if (history_.size() > 4) history_.erase(history_.begin());
    return transfer(sample, combined_history(), timestep(call), timestep(call) - stride_);
  }

  // Adams-Bashforth of the order that the history allows.
  torch::Tensor combined_history() const {
    const auto e = [&](int back) { return history_[history_.size() - 1 - back]; };
    switch (history_.size()) {
      case 1:
        return e(0);
      case 2:
        return (3 * e(0) - e(1)) / 2;
      case 3:
        return (23 * e(0) - 16 * e(1) + 5 * e(2)) / 12;
      default:
        return (55 * e(0) - 59 * e(1) + 37 * e(2) - 9 * e(3)) / 24;
    }
  }

  // Equation 9: from timestep `from` to timestep `to` along the given output.
  torch::Tensor transfer(const torch::Tensor& sample, const torch::Tensor& output, int from, int to) const {
    const double a = alpha_bar_.at(from), b = alpha_bar_.at(to);
    const torch::Tensor noise = predicted_noise(prediction_, output, sample, std::sqrt(a), std::sqrt(1 - a));
    const double divisor = a * std::sqrt(1 - b) + std::sqrt(a * (1 - a) * b);
    return std::sqrt(b / a) * sample - (b - a) / divisor * noise;
  }

  AlphaBar alpha_bar_;
  Prediction prediction_;
  std::size_t runge_kutta_calls_;
  int stride_;
  std::vector<torch::Tensor> history_;  // outputs, the newest last, at most four
  torch::Tensor origin_;                // where the step that takes several calls began
  torch::Tensor weighted_;              // Runge-Kutta's weighted mean so far
};

}  // namespace

std::unique_ptr<Sampler> make_pndm(const SchedulerConfig& config, int steps) {
  const std::vector<double> plan = plan_timesteps(config, steps);
  const int stride = config.num_train_timesteps / steps;
  std::vector<int> multistep(plan.begin(), plan.end()), runge_kutta;
  if (config.skip_prk_steps) {
    if (steps > 1) multistep.insert(multistep.begin() + 1, multistep[1]);
    return std::make_unique<Pndm>(config, runge_kutta, multistep, stride);
  }
  if (steps < 4) fail(Exit::usage, "PNDM with Runge-Kutta steps (skip_prk_steps false) needs at least 4 steps");
  for (int i = 0; i < 3; ++i) {
    const int middle = multistep[i + 1] + stride / 2;
    runge_kutta.insert(runge_kutta.end(), {multistep[i], middle, middle, multistep[i + 1]});
  }
  multistep.erase(multistep.begin(), multistep.begin() + 3);
  return std::make_unique<Pndm>(config, runge_kutta, multistep, stride);
}

}  // namespace millrace
