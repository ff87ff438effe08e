#include "interval_account.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <type_traits>
#include <utility>

#include "millrace/core/units.h"
#include "millrace/nn/device.h"

namespace millrace {

void IntervalAccount::Sums::add(const StepSeconds& seconds) {
  ++steps;
  step_seconds += seconds.step;
  wait_seconds += seconds.samples.longest;
}

void IntervalAccount::Sums::tell(Metrics& metrics, int global_batch) const {
  if (steps == 0) return;
  const auto count = static_cast<double>(steps);
  metrics.images_per_second = count * global_batch / step_seconds;
  metrics.step_ms = 1000 * step_seconds / count;
  metrics.data_wait_ms = 1000 * wait_seconds / count;
}

void IntervalAccount::add(double loss, double grad_norm, const LossParts& parts, const StepSeconds& seconds) {
  ++steps_;
  if (parts_.empty())
    for (const auto& [name, value] : parts) parts_.emplace_back(name, 0);
  if (std::isfinite(loss) && std::isfinite(grad_norm)) {
    ++finite_steps_;
    loss_ += loss;
    grad_norm_ += grad_norm;
    for (std::size_t i = 0; i < parts.size(); ++i) parts_[i].second += parts[i].second;
  }
  interval_.add(seconds);
  if (first_.steps == 0) {
    first_.add(seconds);
    return;
  }
  later_.add(seconds);
  ++own_steps_;
  own_seconds_ += seconds.own();
}

Metrics IntervalAccount::take(const RunState& state, double lr) {
  Metrics m;
  producers_.account(steps_, m, totals_);
  double memory = static_cast<double>(peak_memory_bytes(context_.device)) / gib;
  context_.trainers.all_reduce_max(std::span(&memory, 1));
  const auto own = own_seconds();
  const auto slowest = find_slowest(own);
  const auto gpus = gpu_states();
  if (context_.is_root()) warn_of_stragglers("trains", context_.trainer_ranks, slow_.look(own, own_steps_), gpus);

  m.step = state.step;
  m.samples = state.samples;
  m.skipped = state.skipped;
  m.loss = finite_steps_ ? loss_ / static_cast<double>(finite_steps_) : std::nan("");
  m.grad_norm = finite_steps_ ? grad_norm_ / static_cast<double>(finite_steps_) : std::nan("");
  m.loss_parts = std::exchange(parts_, {});
  for (auto& [name, value] : m.loss_parts) value /= static_cast<double>(finite_steps_);
  m.lr = lr;
  interval_.tell(m, context_.config.batch.global);
  m.straggler = slowest.ratio;
  m.slowest_rank = context_.trainer_ranks.at(slowest.place).rank;
  m.validation = std::exchange(validation_, std::nullopt);
  m.memory_gib = memory;
  m.gpu = look_at_gpus();
  for (const auto& gpu : gpus) {
    if (gpu.clock_mhz > 0) m.gpu_clock_mhz = std::min(gpu.clock_mhz, m.gpu_clock_mhz.value_or(gpu.clock_mhz));
    if (gpu.celsius > 0) m.gpu_temperature = std::max(gpu.celsius, m.gpu_temperature.value_or(0));
  }
  m.elapsed_seconds = state.seconds;

  totals_.loss = m.loss;
  totals_.grad_norm = m.grad_norm;
  totals_.lr = m.lr;
  totals_.memory_gib = memory;
  interval_ = {};
  steps_ = finite_steps_ = own_steps_ = 0;
  loss_ = grad_norm_ = own_seconds_ = 0;
  return m;
}

Metrics IntervalAccount::totals(const RunState& state) const {
  Metrics totals = totals_;
  totals.step = state.step;
  totals.samples = state.samples;
  totals.skipped = state.skipped;
  totals.elapsed_seconds = state.seconds;
  (later_.steps > 0 ? later_ : first_).tell(totals, context_.config.batch.global);
  return totals;
}

// Collective. An interval may be shorter than the time between two looks: what was true is still the best guess then.
const GpuUse& IntervalAccount::look_at_gpus() {
  const auto now = gpu_watch_.use();
  GpuUse since = now;
  since.add(std::exchange(gpu_before_, now), -1);
  static_assert(std::is_trivially_copyable_v<GpuUse> && sizeof(GpuUse) % sizeof(double) == 0);  // numbers alone
  context_.trainers.all_reduce_sum(std::span(reinterpret_cast<double*>(&since), sizeof since / sizeof(double)));
  if (since.is_known()) gpu_ = since;
  return gpu_;
}

// Of every trainer. Collective.
std::vector<GpuState> IntervalAccount::gpu_states() {
  std::vector<GpuState> all(static_cast<std::size_t>(context_.trainers.size()));
  all[static_cast<std::size_t>(context_.trainers.rank())] = gpu_watch_.state();
  constexpr std::size_t numbers = sizeof(GpuState) / sizeof(double);  // it is nothing else
  context_.trainers.all_reduce_sum(std::span(reinterpret_cast<double*>(all.data()), numbers * all.size()));
  return all;
}

// What every trainer took for a step of its own work, not a number before the second step; where some have more
// samples than others, for as many samples as they all have on average. Collective.
std::vector<double> IntervalAccount::own_seconds() const {
  std::vector<double> all(static_cast<std::size_t>(context_.trainers.size()), 0.0);
  const double share = context_.model.plan().splits_parameters()
                           ? 1  // all take as many micro-batches
                           : static_cast<double>(context_.task.refs().size()) * context_.trainers.size() /
                                 static_cast<double>(context_.config.batch.global);
  all[static_cast<std::size_t>(context_.trainers.rank())] = own_seconds_ / static_cast<double>(own_steps_) / share;
  context_.trainers.all_reduce_sum(std::span<double>(all));
  return all;
}

}  // namespace millrace
