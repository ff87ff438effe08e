#include "step_guard.h"

#include <algorithm>

namespace millrace {

std::optional<SpikeGuard::Spike> SpikeGuard::look_at(double loss) {
  constexpr int warm_up = 100;
  constexpr double rate = 0.02;
  std::optional<Spike> spike;
  const double deviation = loss - mean_;
  if (++seen_ > warm_up && deviation > sigma_ * std::sqrt(variance_))
    spike = Spike{deviation / std::sqrt(variance_), mean_};
  const double weight = std::max(rate, 1.0 / static_cast<double>(seen_));
  mean_ += weight * deviation;
  variance_ = (1 - weight) * (variance_ + weight * deviation * deviation);
  return spike;
}

StepGuard::Verdict StepGuard::judge(double loss, double gradient_norm) {
  spike_.reset();
  if (std::isfinite(loss) && std::isfinite(gradient_norm)) {
    skips_in_a_row_ = 0;
    spike_ = spikes_.look_at(loss);
    return Verdict::update;
  }
  ++skips_in_a_row_;
  const bool stop = config_.non_finite == GuardConfig::NonFinite::stop || skips_in_a_row_ > config_.max_skips;
  return stop ? Verdict::stop : Verdict::skip;
}

}  // namespace millrace
