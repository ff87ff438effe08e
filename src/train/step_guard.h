#pragma once
#include <optional>

#include "millrace/checkpoint/run_state.h"
#include "millrace/train/train_config.h"

namespace millrace {

// Decides whether a step updates the weights, by its loss and gradient norm. Every rank decides alike, from the same
// totals. Mean and variance of the losses look back over about 50 steps; skipped steps do not enter, and nothing is a
// spike before 100 have.
class StepGuard {
 public:
  StepGuard(const GuardConfig& config, const LossHistory& history) : config_(config), history_(history) {}

  enum class Verdict {
    update,
    skip,     // the batch is used up, weights stay
    stop,     // too many skips in a row, or the user wants to stop at the first that is not finite
    go_back,  // too many skips in a row, and the user wants to go back and leave them out
  };
  Verdict judge(std::int64_t step, double loss, double gradient_norm);

  // By how many standard deviations the loss of the last judged step was above the mean, if that was too much.
  const std::optional<double>& spike() const { return spike_; }
  // The last judged step included.
  const LossHistory& history() const { return history_; }

 private:
  std::optional<double> spike_of(double loss) const;
  void learn(double loss);

  GuardConfig config_;
  LossHistory history_;
  std::optional<double> spike_;
};

}  // namespace millrace
