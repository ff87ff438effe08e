#pragma once
#include <cmath>

#include "millrace/core/log.h"

namespace millrace {

// Watches the loss: warns when one lies more than `sigma` standard deviations above its running mean.
class SpikeGuard {
 public:
  explicit SpikeGuard(double sigma) : sigma_(sigma) {}

  void look_at(double loss) {
    constexpr int warm_up = 100;
    constexpr double rate = 0.02;  // the mean looks back over about 50 steps
    const double deviation = loss - mean_;
    if (++seen_ > warm_up && deviation > sigma_ * std::sqrt(variance_))
      log::warning("loss {:.4f} is {:.1f} standard deviations above its mean of {:.4f}", loss,
                   deviation / std::sqrt(variance_), mean_);
    const double weight = std::max(rate, 1.0 / seen_);
    mean_ += weight * deviation;
    variance_ = (1 - weight) * (variance_ + weight * deviation * deviation);
  }

 private:
  double sigma_;
  long seen_ = 0;
  double mean_ = 0, variance_ = 0;
};

}  // namespace millrace
