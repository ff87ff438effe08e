#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "millrace/config/config.h"
#include "millrace/core/units.h"

namespace millrace {

enum class Schedule { constant, linear, cosine };
const char* to_string(Schedule schedule);

// Section `optim` of the configuration.
struct OptimConfig {
  double lr = 1e-4;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.01;
  std::optional<double> clip = 1.0;
  Schedule schedule = Schedule::constant;
  Duration warmup = Duration::steps(10000);

  void describe(config::Section& section);
};

// Section `ema` of the configuration.
struct EmaConfig {
  bool enabled = true;
  double decay = 0.9999;
  bool warmup = true;

  void describe(config::Section& section);
};

// The schedule of the learning rate, with all durations in steps of the present batch.
struct LrSchedule {
  Schedule schedule = Schedule::constant;
  double lr = 0;
  double warmup_steps = 0;
  double total_steps = 0;  // unused by constant
  // Durations given in samples are counted in samples, since the run may have had other batch sizes before: see
  // learning_rate.
  std::int64_t global_batch = 1;
  bool warmup_in_samples = false, total_in_samples = false;
};

// Error(bug) if it needs the steps of a duration that is a time: the check of the settings comes before.
LrSchedule plan_lr_schedule(const OptimConfig& config, const Duration& duration, std::int64_t global_batch);

// The rate of step n = 1, 2, ..., whose last sample is the `samples`-th of the run.
double learning_rate(const LrSchedule& schedule, std::int64_t step, std::int64_t samples);

// The decay of EMA update n = 1, 2, ...; with warm-up by the rule of diffusers' EMAModel.
double ema_decay(const EmaConfig& config, std::int64_t update);

// The factor for gradients, as in clip_grad_norm_: min(1, clip / (norm + 1e-6)); 1 without clip.
double clip_factor(const std::optional<double>& clip, double gradient_norm);

}  // namespace millrace
