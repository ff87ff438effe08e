#pragma once
#include <optional>

#include "millrace/checkpoint/run_state.h"
#include "millrace/train/train_config.h"

namespace millrace {

// Decides what becomes of a step whose loss and gradient norm are known. Every rank decides alike, from the same
// totals. Mean and variance of the losses look back over about 50 steps; what is skipped does not enter them, and they
// count once 100 have.
class StepGuard {
 public:
  StepGuard(const GuardConfig& config, const LossHistory& history) : config_(config), history_(history) {}

  enum class Verdict {
    update,
    skip,     // the batch is used up, weights stay
    stop,     // there were too many of these in a row, or the user wants none that is not finite
    go_back,  // there were too many, and the user wants to leave them out
  };
  Verdict judge(std::int64_t step, double loss, double gradient_norm);

  // Of the step judged last: by how many standard deviations a finite loss was above the mean, where that was too much.
  const std::optional<double>& spike() const { return spike_; }
  // With that step.
  const LossHistory& history() const { return history_; }

 private:
  std::optional<double> spike_of(double loss) const;
  void learn(double loss);

  GuardConfig config_;
  LossHistory history_;
  std::optional<double> spike_;
};

}  // namespace millrace
