#pragma once
#include <vector>

#include "millrace/diffusion/scheduler_config.h"

namespace millrace {

// How much of the image is left at each timestep t: x_t = sqrt(alpha_bar) x_0 + sqrt(1 - alpha_bar) noise.
//
// NOTE [One schedule on every processor]: what tensor operations give depends on the processor's vector width, and
// diffusers' schedule with it: in the seventh digit, and near zero terminal SNR in the fifth. Here every number is
// computed alone in double precision; what training takes from it is rounded to fp32 afterwards. (The cosine schedule
// calls the C library, whose cosine differs between processors in the last of 53 bits: far below what is left after
// rounding.)
class NoiseSchedule {
 public:
  // The schedule of the config's own class, rescaled to zero terminal SNR where the config says so (Lin et al., "Common
  // Diffusion Noise Schedules and Sample Steps are Flawed", algorithm 1).
  explicit NoiseSchedule(const SchedulerConfig& config);

  int size() const { return static_cast<int>(alphas_cumprod_.size()); }
  const std::vector<double>& alphas_cumprod() const { return alphas_cumprod_; }
  // alpha_bar / (1 - alpha_bar); 0 at the end of a zero-terminal-SNR schedule.
  double snr(int timestep) const;

 private:
  std::vector<double> alphas_cumprod_;
};

}  // namespace millrace
