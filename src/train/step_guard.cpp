#include "step_guard.h"

#include <algorithm>
#include <cmath>

namespace millrace {

StepGuard::Verdict StepGuard::judge(std::int64_t step, double loss, double gradient_norm) {
  const bool finite = std::isfinite(loss) && std::isfinite(gradient_norm);
  spike_ = finite ? spike_of(loss) : std::nullopt;
  if (finite && !spike_) {
    learn(loss);
    history_.skips_in_a_row = 0;
    return Verdict::update;
  }
  if (++history_.skips_in_a_row == 1) history_.first_skip = step;
  if (!finite && config_.non_finite == GuardConfig::NonFinite::stop) return Verdict::stop;
  if (history_.skips_in_a_row <= config_.max_skips) return Verdict::skip;
  return config_.on_repeat == GuardConfig::OnRepeat::rollback ? Verdict::go_back : Verdict::stop;
}

std::optional<double> StepGuard::spike_of(double loss) const {
  constexpr int warm_up = 100;
  const double deviation = loss - history_.mean, standard = std::sqrt(history_.variance);
  if (!config_.spike_sigma || history_.steps < warm_up || deviation <= *config_.spike_sigma * standard)
    return std::nullopt;
  return deviation / standard;
}

void StepGuard::learn(double loss) {
  constexpr double rate = 0.02;
  const double deviation = loss - history_.mean;
  const double weight = std::max(rate, 1.0 / static_cast<double>(++history_.steps));
  history_.mean += weight * deviation;
  history_.variance = (1 - weight) * (history_.variance + weight * deviation * deviation);
}

}  // namespace millrace
