#pragma once
#include <cmath>
#include <memory>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/diffusion/noise_schedule.h"
#include "millrace/diffusion/sampler.h"
#include "timesteps.h"

// The samplers with a file of their own, beside the two of sampler.cpp, and the words that all share.
namespace millrace {

std::unique_ptr<Sampler> make_pndm(const SchedulerConfig& config, int steps);
std::unique_ptr<Sampler> make_dpmpp_2m(const SchedulerConfig& config, int steps);
std::unique_ptr<Sampler> make_unipc(const SchedulerConfig& config, int steps);

// x = alpha x_0 + sigma noise with alpha^2 + sigma^2 = 1, and half the log of the signal-to-noise ratio.
struct NoiseLevel {
  double alpha, sigma, lambda;

  static NoiseLevel of_ratio(double ratio) {  // ratio = sigma / alpha
    const double alpha = 1 / std::sqrt(ratio * ratio + 1);
    return {alpha, ratio * alpha, -std::log(ratio)};
  }
};

// x_0 out of the model's output for the sample x.
inline torch::Tensor predicted_x0(Prediction prediction, const torch::Tensor& output, const torch::Tensor& x,
                                  double alpha, double sigma) {
  switch (prediction) {
    case Prediction::epsilon:
      return (x - sigma * output) / alpha;
    case Prediction::v_prediction:
      return alpha * x - sigma * output;
  }
  throw bug("a prediction that does not tell x_0");
}

// The noise in x out of the model's output.
inline torch::Tensor predicted_noise(Prediction prediction, const torch::Tensor& output, const torch::Tensor& x,
                                     double alpha, double sigma) {
  switch (prediction) {
    case Prediction::epsilon:
      return output;
    case Prediction::v_prediction:
      return alpha * output + sigma * x;
  }
  throw bug("a prediction that does not tell the noise");
}

// Alpha-bar by timestep, beyond the last one as well.
class AlphaBar {
 public:
  explicit AlphaBar(const SchedulerConfig& config)
      : table_(NoiseSchedule(config).alphas_cumprod()), beyond_(config.set_alpha_to_one ? 1 : table_.front()) {}

  double at(int timestep) const { return timestep >= 0 ? table_.at(timestep) : beyond_; }

 private:
  std::vector<double> table_;
  double beyond_;
};

}  // namespace millrace
