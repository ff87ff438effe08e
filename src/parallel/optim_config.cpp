#include "millrace/parallel/optim_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "millrace/core/error.h"

namespace millrace {
namespace {

double in_steps(const Duration& duration, std::int64_t global_batch) {
  const auto steps = to_steps(duration, global_batch);
  ensure(steps.has_value(), "a learning rate by the time");
  return *steps;
}

// sin(x pi / 2) for 0 <= x <= 1: angle (1 - angle^2 / (2 3) (1 - angle^2 / (4 5) (1 - ...))). Plain arithmetic gives
// the same learning rate on every processor; the C library's cosine differs in its last bit.
double sine_of_quarter_turns(double x) {
  const double angle = x * (std::numbers::pi / 2);
  double series = 1;
  for (int k = 25; k > 1; k -= 2) series = 1 - angle * angle / (k * (k - 1)) * series;
  return angle * series;
}

// Of optim.lr, at this share (0 to 1) of the way from the end of the warm-up to that of the run.
double share_of_rate(Schedule schedule, double progress) {
  switch (schedule) {
    case Schedule::constant:
      return 1;
    case Schedule::linear:
      return 1 - progress;
    case Schedule::cosine: {
      const double sine = sine_of_quarter_turns(1 - progress);  // sine^2 = (1 + cos(pi progress)) / 2
      return sine * sine;
    }
  }
  throw bug("every schedule has a rate");
}

}  // namespace

const char* to_string(Schedule schedule) {
  switch (schedule) {
    case Schedule::constant:
      return "constant";
    case Schedule::linear:
      return "linear";
    case Schedule::cosine:
      return "cosine";
  }
  throw bug("every schedule has a name");
}

void OptimConfig::describe(config::Section& section) {
  section.key("lr", lr, "learning rate after the warm-up").at_least(0);
  section.key("betas", betas, "decay of AdamW's two moments").at_least(0).below(1);
  section.key("eps", eps, "added to the root of the second moment").at_least(0);
  section.key("weight_decay", weight_decay, "decoupled decay of all parameters").at_least(0);
  section.key("clip", clip, "largest global gradient norm; null = off").above(0);
  section.key("schedule", schedule,
              {{to_string(Schedule::constant), Schedule::constant},
               {to_string(Schedule::linear), Schedule::linear},
               {to_string(Schedule::cosine), Schedule::cosine}},
              "learning rate from the end of the warm-up to the end of the run; linear and cosine fall to 0");
  section.key("warmup", warmup,
              "the learning rate rises linearly this long, in a shorter run to its end; 0 steps = none");
}

void EmaConfig::describe(config::Section& section) {
  section.key("enabled", enabled, "keep an exponential moving average of the weights");
  section.key("decay", decay, "share of the average that an update keeps").at_least(0).at_most(1);
  section.key("warmup", warmup,
              "smaller decay at first: min(decay, (1 + n) / (10 + n)) after n >= 1 updates; the first update takes the "
              "weights");
}

LrSchedule plan_lr_schedule(const OptimConfig& config, const Duration& duration, std::int64_t global_batch) {
  const auto in_samples = [](const Duration& length) { return length.unit == Duration::Unit::samples; };
  LrSchedule schedule{.schedule = config.schedule,
                      .lr = config.lr,
                      .global_batch = global_batch,
                      .warmup_in_samples = in_samples(config.warmup),
                      .total_in_samples = in_samples(duration)};
  schedule.warmup_steps = in_steps(config.warmup, global_batch);
  if (config.schedule != Schedule::constant) schedule.total_steps = std::ceil(in_steps(duration, global_batch));
  return schedule;
}

double learning_rate(const LrSchedule& schedule, std::int64_t step, std::int64_t samples) {
  const double warmup = schedule.warmup_steps, total = schedule.total_steps;
  const double by_steps = static_cast<double>(step);
  const double by_samples = static_cast<double>(samples) / static_cast<double>(schedule.global_batch);
  const double warmed = schedule.warmup_in_samples ? by_samples : by_steps;
  if (warmed <= warmup) return schedule.lr * (warmed / warmup);
  const double n = schedule.total_in_samples ? by_samples : by_steps;
  const double progress = total > warmup ? std::clamp((n - warmup) / (total - warmup), 0.0, 1.0) : 1.0;
  return schedule.lr * share_of_rate(schedule.schedule, progress);
}

double ema_decay(const EmaConfig& config, std::int64_t update) {
  if (!config.warmup) return config.decay;
  const double before = static_cast<double>(update - 1);
  return before == 0 ? 0 : std::min(config.decay, (1 + before) / (10 + before));
}

double clip_factor(const std::optional<double>& clip, double gradient_norm) {
  return clip ? std::min(1.0, *clip / (gradient_norm + 1e-6)) : 1.0;
}

}  // namespace millrace
