#pragma once
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "leaving.h"
#include "millrace/checkpoint/run_state.h"
#include "millrace/nn/gpu_watch.h"
#include "producer_account.h"
#include "straggler.h"

namespace millrace {

// Where the time of a step went on this trainer, in seconds.
struct StepSeconds {
  double step = 0;           // the whole step
  SampleWait samples;        // part of it
  double waited_others = 0;  // part of it, in collectives

  double own() const { return step - samples.own - waited_others; }
};

// The means of metrics.jsonl: over the steps since its last line, and over all steps of this process.
class IntervalAccount {
 public:
  explicit IntervalAccount(const TrainerContext& context)
      : context_(context), producers_(context), gpu_watch_(context.gpu_uuid) {}

  // `loss`, its terms and `grad_norm`: over the global batch. If loss or norm is not finite the step is left out of
  // their means.
  void add(double loss, double grad_norm, const LossParts& parts, const StepSeconds& seconds);
  // A step that was passed over: nothing was trained, so it is in no mean and no rate.
  void pass_over() { ++steps_; }
  void add_validation(ValidationLosses losses) { validation_ = std::move(losses); }
  bool has_steps() const { return steps_ > 0; }

  // One line of metrics; a new interval begins. Warns of trainers and producers that stay slow. Collective.
  Metrics take(const RunState& state, double lr);
  // Means over this process's steps but the first; losses of the last line.
  Metrics totals(const RunState& state) const;

 private:
  // Sums over steps that were trained.
  struct Sums {
    std::int64_t steps = 0;
    double step_seconds = 0, wait_seconds = 0;

    void add(const StepSeconds& seconds);
    // Writes their means, if there are any.
    void tell(Metrics& metrics, int global_batch) const;
  };

  std::vector<double> own_seconds() const;
  const GpuUse& look_at_gpus();
  std::vector<GpuState> gpu_states();

  const TrainerContext& context_;
  ProducerAccount producers_;
  StragglerWatch slow_;
  GpuWatch gpu_watch_;
  GpuUse gpu_before_;  // this trainer's, at the last line
  GpuUse gpu_;         // of all trainers, in the last interval in which something was seen

  // Since the last line.
  std::int64_t steps_ = 0, finite_steps_ = 0;  // with those that were left out; those whose loss and norm are summed
  double loss_ = 0, grad_norm_ = 0;
  LossParts parts_;
  Sums interval_;
  std::int64_t own_steps_ = 0;  // all but the first one of this process
  double own_seconds_ = 0;      // in these
  std::optional<ValidationLosses> validation_;

  // Of this process. Its first step may compile and tune, and waits for the first samples: it counts only while it is
  // the only one.
  Sums first_, later_;
  Metrics totals_;
};

}  // namespace millrace
