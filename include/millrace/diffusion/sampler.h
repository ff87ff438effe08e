#pragma once
#include <torch/types.h>

#include <memory>
#include <optional>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/diffusion/scheduler_config.h"

namespace millrace {

// Turns noise into a latent by calling the model once per timestep:
//
//   sample = noise * sampler->initial_sigma();
//   for (std::size_t i = 0; i < sampler->timesteps().size(); ++i)
//     sample = sampler->step(model(sampler->scale_model_input(sample, i), sampler->timesteps()[i]), i, sample);
//
// Tensors are fp32 of any shape, the same for all calls. Holds the history of one batch: make a new one for the next.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // One per model call, in order; whole numbers, except for Euler.
  const std::vector<double>& timesteps() const { return timesteps_; }
  // Standard deviation of the initial sample.
  virtual double initial_sigma() const { return 1; }
  virtual torch::Tensor scale_model_input(const torch::Tensor& sample, std::size_t call) const { return sample; }
  // The sample after call number `call`; calls come in order.
  virtual torch::Tensor step(const torch::Tensor& output, std::size_t call, const torch::Tensor& sample) = 0;

 protected:
  explicit Sampler(std::vector<double> timesteps) : timesteps_(std::move(timesteps)) {}

 private:
  std::vector<double> timesteps_;
};

// Why none of the samplers is that of the config: its class makes noise of its own (DDPM), is not known, or has a
// setting that is not implemented. Nothing where one is.
std::optional<Error> find_refusal(const SchedulerConfig& config);

// The deterministic sampler of the config's class: DDIM (eta 0), PNDM, Euler, DPM-Solver++ 2M, UniPC (order 2, bh2).
// Throws what find_refusal finds; Error(usage) for steps that do not fit into the schedule, and for epsilon prediction
// with DDIM or PNDM at zero terminal SNR.
std::unique_ptr<Sampler> make_sampler(const SchedulerConfig& config, int steps);

}  // namespace millrace
