#include "millrace/train/loop.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "data_account.h"
#include "interval_account.h"
#include "leaving.h"
#include "millrace/checkpoint/cadence.h"
#include "millrace/comm/agree.h"
#include "millrace/comm/fault.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/startup.h"
#include "millrace/core/stopwatch.h"
#include "millrace/train/record.h"
#include "pace.h"
#include "saves.h"
#include "step_guard.h"

namespace millrace {
namespace {

// What all ranks must know about a step before they decide what to do with it: summed over trainers in one small
// message.
struct StepTotals {
  double loss = 0;        // mean over the global batch
  double square_sum = 0;  // of the gradient
  double writing = 0;     // ranks that are still writing or reading back a checkpoint
  double save = 0;        // rank 0's wish to save after this step
  double clock = 0;       // rank 0's seconds in training, so that all ranks agree on what time it is

  void reduce(const Group& group) {
    double values[] = {loss, square_sum, writing, save, clock};
    group.all_reduce_sum(std::span<double>(values));
    std::tie(loss, square_sum, writing, save, clock) = std::tie(values[0], values[1], values[2], values[3], values[4]);
  }
  double norm() const { return std::sqrt(square_sum); }
};

class Loop {
 public:
  Loop(TrainerContext context, RunState state)
      : context_(std::move(context)),
        state_(std::move(state)),
        start_(state_.point()),
        before_(start_),
        schedule_(plan_lr_schedule(context_.optim, context_.config.duration, context_.config.batch.global)),
        guard_(context_.config.guard),
        progress_(open_progress()),
        leaving_(context_),
        data_(context_, std::exchange(state_.ledger, {})),
        account_(context_),
        saves_(context_, state_, data_, progress_.get()) {}

  LoopResult run() try {
    set_wait_limit(context_, 5);  // until the first step is done
    while (!is_finished() && step()) {
    }
    enter_slow(context_, phase::saving);
    leaving_.stop_producers();
    if (!leaving_.reason().empty()) saves_.stop_because(leaving_.reason());
    write_metrics();
    saves_.save_last();
    if (is_root()) data_.write_report();
    return result();
  } catch (...) {
    fault::leaving();
    throw;
  }

 private:
  bool is_root() const { return context_.trainers.rank() == 0; }
  bool is_finished() const { return reached(context_.config.duration, state_.point()); }
  double seconds() const { return start_.seconds + since_start_.seconds(); }
  // In the step just taken.
  bool is_due(const std::optional<Duration>& every) const { return crossed(every, before_, state_.point()); }

  std::unique_ptr<Progress> open_progress() const {
    if (!is_root()) return nullptr;
    const LoopConfig& config = context_.config;
    const double total_steps = steps_of(config.duration, config.batch.global);
    return std::make_unique<Progress>(
        Progress::Options{config.run_dir, state_.step, config.log.tensorboard, config.log.ids, total_steps});
  }

  // One optimizer step; false when all trainers have agreed to leave instead.
  bool step() {
    const auto number = state_.step + 1;
    log::set_step(number);
    const Stopwatch watch;
    const double waited_before = phase::waited_seconds;
    const auto wait = leaving_.wait_for_batches(saves_.seconds_needed());
    if (!wait) return false;
    const bool is_first = state_.step == start_.step;
    phase::current = is_first ? phase::first_step : phase::training;

    const bool is_recorded = std::ranges::count(context_.config.record.steps, number) > 0;
    if (is_recorded) context_.task.start_record();
    StepTotals totals = forward_backward();
    totals.reduce(context_.trainers);
    if (is_recorded) record(totals);
    update(totals);
    advance(totals);
    if (is_first && is_root()) tell_start(*wait);
    account_.add(totals.loss, totals.norm(), {watch.seconds(), *wait, phase::waited_seconds - waited_before});

    phase::current = phase::accounting;
    write_ids();
    const bool validated = validate_if_due();
    if (validated || is_due(context_.config.log.every)) write_metrics();
    const auto& every = context_.config.checkpoint.every;
    saves_.after_step(totals.writing > 0, every && (every->value ? is_due(every->value) : totals.save > 0), seconds());
    leaving_.step_took(watch.seconds() - *wait);
    steady(context_);
    return true;
  }

  // Loss and gradients of this trainer's local batch; afterwards the gradient shards hold the mean over the global
  // batch.
  StepTotals forward_backward() {
    context_.model.zero_gradients();
    const auto local_batch = static_cast<std::int64_t>(context_.task.refs().size());
    torch::Tensor loss;
    // Some trainers may have more samples than others, and more turns here: nothing collective in this loop.
    for (std::int64_t begin = 0; begin < local_batch; begin += context_.config.batch.micro) {
      auto micro = context_.task.loss(begin, std::min<std::int64_t>(begin + context_.config.batch.micro, local_batch));
      micro.backward();
      loss = loss.defined() ? loss + micro.detach() : micro.detach();
      ++phase::moves;
    }
    context_.model.reduce_gradients(1.0);
    StepTotals totals;
    totals.loss = loss.item<double>();
    totals.square_sum = context_.model.gradient_square_sum();
    totals.writing = saves_.busy() ? 1 : 0;
    totals.save = is_root() && saves_.wants(seconds()) ? 1 : 0;
    totals.clock = is_root() ? seconds() : 0;
    return totals;
  }

  void record(const StepTotals& totals) {
    enter_slow(context_, phase::saving);
    write_record(context_.trainers, context_.config.run_dir, state_.step + 1, context_.task.refs(),
                 context_.task.take_record(), totals.loss, totals.norm());
    phase::current = phase::training;
  }

  void update(const StepTotals& totals) {
    lr_ = learning_rate(schedule_, state_.step + 1);
    const auto verdict = guard_.judge(totals.loss, totals.norm());
    if (verdict == StepGuard::Verdict::update) {
      context_.optimizer.step(lr_, clip_factor(context_.optim.clip, totals.norm()));
      if (const auto& spike = guard_.spike(); spike && is_root())
        log::warning("loss {:.4f} is {:.1f} standard deviations above its mean of {:.4f}", totals.loss,
                     spike->deviations, spike->mean);
      return;
    }
    ++state_.skipped;
    const auto ids = batch_ids();  // collective
    if (verdict == StepGuard::Verdict::stop) on_root(context_.trainers, [&] { throw numerics_error(totals, ids); });
    if (is_root())
      log::warning("step {}: loss {} or gradient norm {} is not finite; the update is skipped", state_.step + 1,
                   totals.loss, totals.norm());
  }

  Error numerics_error(const StepTotals& totals, const std::vector<std::string>& ids) const {
    const auto shown = std::min<std::size_t>(ids.size(), 16);
    return Error(Exit::numerics,
                 fmt::format("step {}: loss {} or gradient norm {} is not finite ({} in a row); samples: {}",
                             state_.step + 1, totals.loss, totals.norm(), guard_.skips_in_a_row(),
                             fmt::join(ids.data(), ids.data() + shown, ", ")),
                 "record.steps writes a step's tensors; a lower optim.lr or float32 (model.dtype) are the usual cures");
  }

  void advance(const StepTotals& totals) {
    before_ = state_.point();
    ++state_.step;
    state_.samples += context_.config.batch.global;
    state_.updates = context_.optimizer.updates();
    state_.ema_updates = context_.optimizer.ema_updates();
    state_.seconds = totals.clock;
    saves_.advance(context_.task.refs());
    data_.add(context_.task.take_ledger_delta());
  }

  void tell_start(double waited) const {
    startup::done("first step");
    log::info("started in {} ({:.1f} of it waiting for samples)", startup::describe(), waited);
  }

  // The ids of the global batch, in batch order, on rank 0. Collective.
  std::vector<std::string> batch_ids() const {
    std::string mine;
    for (const auto& ref : context_.task.refs()) mine += ref.id + '\n';
    std::vector<std::string> ids;
    for (const auto& part : context_.trainers.gather_strings(mine)) {
      std::size_t begin = 0;
      for (std::size_t end; (end = part.find('\n', begin)) != part.npos; begin = end + 1)
        ids.push_back(part.substr(begin, end - begin));
    }
    return ids;
  }

  void write_ids() {
    if (!context_.config.log.ids) return;
    const auto ids = batch_ids();
    if (is_root()) progress_->ids(state_.step, ids);
  }

  // With the weights that `export` gives: the EMA where there is one. Collective.
  bool validate_if_due() {
    if (!context_.validation || !is_due(context_.validation->every())) return false;
    enter_slow(context_, phase::validating);
    const auto measure = [&] { account_.add_validation(context_.validation->loss(context_.trainers)); };
    if (context_.optimizer.has_ema()) {
      context_.optimizer.with_ema(measure);
    } else {
      measure();
    }
    phase::current = phase::accounting;
    return true;
  }

  // Collective: judges the data, and writes one line of metrics.
  void write_metrics() {
    data_.merge();
    if (!account_.has_steps()) return;
    const auto metrics = account_.take(state_, lr_);
    if (is_root()) progress_->metrics(metrics);
  }

  LoopResult result() const {
    LoopResult result;
    result.finished = is_finished();
    result.failure = leaving_.shared_failure();
    result.reason = result.failure ? result.failure->what() : leaving_.reason();
    result.state = state_;
    result.checkpoint = saves_.newest();
    result.totals = account_.totals(state_);
    return result;
  }

  const TrainerContext context_;
  RunState state_;
  const RunPoint start_;  // where this process began
  RunPoint before_;       // before the last step
  const Stopwatch since_start_{};
  const LrSchedule schedule_;
  double lr_ = 0;
  StepGuard guard_;
  std::unique_ptr<Progress> progress_;  // on rank 0
  Leaving leaving_;
  DataAccount data_;
  IntervalAccount account_;
  Saves saves_;
};

}  // namespace

LoopResult run_loop(TrainerContext context, RunState state) {
  return Loop(std::move(context), std::move(state)).run();
}

}  // namespace millrace
