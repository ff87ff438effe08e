#pragma once
#include <vector>

#include "millrace/diffusion/scheduler_config.h"

namespace millrace {

// The timesteps that `steps` steps of the config's class visit, descending (Table 2 of Lin et al., "Common Diffusion
// Noise Schedules and Sample Steps are Flawed"). Only Euler's linspace has fractions. Error(usage) when the schedule
// has no room for so many steps.
//
// NOTE [61 trailing steps]: for 62 numbers of steps (61, 103, 121, ...) rounding gives numpy.arange one element too
// many, and diffusers makes a last step at timestep -1. Here trailing always gives exactly `steps` timesteps.
std::vector<double> plan_timesteps(const SchedulerConfig& config, int steps);

// Where an ODE sampler stands before each step, and after the last: sigma = sqrt((1 - alpha_bar) / alpha_bar).
struct SigmaPlan {
  std::vector<double> timesteps;  // one per step
  std::vector<float> sigmas;      // one more: the last is 0, or sigma of timestep 0
};

// Timesteps and sigmas for Euler, DPM-Solver++ and UniPC, with Karras' spacing (rho 7) where the config asks for it.
SigmaPlan plan_sigmas(const SchedulerConfig& config, int steps);

}  // namespace millrace
