#pragma once
#include <vector>

#include "millrace/diffusion/scheduler_config.h"

namespace millrace {

// How much of the image is left at each timestep t: x_t = sqrt(alpha_bar) x_0 + sqrt(1 - alpha_bar) noise. fp32 with
// the same operations as diffusers, so that the numbers are the same to the bit.
class NoiseSchedule {
 public:
  // The schedule of the config's own class, rescaled to zero terminal SNR where the config says so (Lin et al., "Common
  // Diffusion Noise Schedules and Sample Steps are Flawed", algorithm 1).
  explicit NoiseSchedule(const SchedulerConfig& config);

  int size() const { return static_cast<int>(alphas_cumprod_.size()); }
  const std::vector<float>& betas() const { return betas_; }
  const std::vector<float>& alphas_cumprod() const { return alphas_cumprod_; }
  // alpha_bar / (1 - alpha_bar); 0 at the end of a zero-terminal-SNR schedule.
  double snr(int timestep) const;

 private:
  std::vector<float> betas_, alphas_cumprod_;
};

}  // namespace millrace
