#pragma once
#include <cmath>
#include <optional>

#include "millrace/train/train_config.h"

namespace millrace {

// Follows a loss, and tells when it jumps. Mean and variance look back over about 50 steps.
class SpikeGuard {
 public:
  explicit SpikeGuard(double sigma) : sigma_(sigma) {}

  struct Spike {
    double deviations;  // standard deviations above the mean
    double mean;
  };
  // A spike: more than `sigma` standard deviations above the mean of the steps before, once there are 100 of them.
  std::optional<Spike> look_at(double loss);

 private:
  double sigma_;
  long seen_ = 0;
  double mean_ = 0, variance_ = 0;
};

// Decides what becomes of a step whose loss and gradient norm are known. Every rank decides alike, from the same
// totals.
class StepGuard {
 public:
  explicit StepGuard(const GuardConfig& config) : config_(config), spikes_(config.spike_sigma) {}

  enum class Verdict {
    update,
    skip,  // not finite: the batch is used up, weights stay
    stop,  // not finite, and there were too many of them, or the user wants none
  };
  Verdict judge(double loss, double gradient_norm);
  // Of the step judged last; a warning, no verdict.
  const std::optional<SpikeGuard::Spike>& spike() const { return spike_; }
  int skips_in_a_row() const { return skips_in_a_row_; }

 private:
  GuardConfig config_;
  SpikeGuard spikes_;
  std::optional<SpikeGuard::Spike> spike_;
  int skips_in_a_row_ = 0;
};

}  // namespace millrace
