#include "millrace/train/loop.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "balance_watch.h"
#include "data_account.h"
#include "interval_account.h"
#include "leaving.h"
#include "micro_batches.h"
#include "millrace/checkpoint/cadence.h"
#include "millrace/comm/agree.h"
#include "millrace/comm/fault.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/startup.h"
#include "millrace/core/stopwatch.h"
#include "millrace/core/units.h"
#include "millrace/nn/attention.h"
#include "millrace/nn/device_work.h"
#include "millrace/nn/fused.h"
#include "millrace/train/passes.h"
#include "millrace/train/progress.h"
#include "millrace/train/record.h"
#include "pace.h"
#include "pictures.h"
#include "saves.h"
#include "step_guard.h"
#include "validation_losses.h"
#include "weight_check.h"

namespace millrace {
namespace {

// What all ranks must know about a step before they decide what to do with it: summed over trainers, and sent to all by
// the first, so that they decide by the same bits.
struct StepTotals {
  double loss = 0;        // mean over the global batch
  double square_sum = 0;  // of the gradient
  double writing = 0;     // ranks that are still writing or reading back a checkpoint
  double save = 0;        // rank 0's wish to save after this step
  double clock = 0;       // rank 0's seconds in training, so that all ranks agree on what time it is
  LossParts parts = {};   // means over the global batch

  void reduce(const Group& group) {
    std::vector<double> values = {loss, square_sum, writing, save, clock};
    const auto first_part = values.size();
    for (const auto& [name, value] : parts) values.push_back(value);
    group.all_reduce_sum(std::span<double>(values));
    std::tie(loss, square_sum, writing, save, clock) = std::tie(values[0], values[1], values[2], values[3], values[4]);
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].second = values[first_part + i];
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
        guard_(context_.config.guard, usual_losses()),
        progress_(open_progress()),
        leaving_(context_),
        data_(context_, std::exchange(state_.ledger, {}), state_.cursors),
        account_(context_),
        saves_(context_, state_, data_, progress_.get()),
        pictures_(context_, progress_.get()),
        passes_(context_.model, context_.cuda_graphs) {}

  LoopResult run() try {
    set_wait_limit(context_, phase::slow_factor);  // until the first step is done
    saves_.guess_at_most(leaving_.seconds_left() / 8);
    while (!is_finished() && step()) {
    }
    enter_slow(context_, phase::saving);
    leaving_.stop_producers();
    if (bad_) {
      end_badly();
      return result();
    }
    if (!leaving_.reason().empty()) saves_.stop_because(leaving_.reason());
    write_metrics();
    saves_.save_last();
    count_bad_rows();
    if (is_root()) {
      data_.write_report();
      progress_->end();
    }
    return result();
  } catch (const AgreedError& error) {
    if (error.exit() == Exit::numerics || error.exit() == Exit::bad_data) end_badly();
    fault::begin_leaving();
    throw;
  } catch (...) {
    fault::begin_leaving();
    throw;
  }

 private:
  bool is_root() const { return context_.is_root(); }
  bool is_finished() const { return reached(context_.config.duration, state_.point()); }
  double seconds() const { return start_.seconds + since_start_.seconds(); }
  // Numbers or samples are bad; the checkpoint that is being written is from before.
  void end_badly() {
    saves_.finish_begun();
    if (is_root()) data_.write_report();
  }
  // Those that end the run, for ledger.json. A checkpoint holds none of them: who goes on from it reads them again.
  void count_bad_rows() {
    const auto failure = leaving_.shared_failure();
    if (!failure || failure->exit() != Exit::bad_data) return;
    data_.add({}, context_.task.take_ledger_delta());
    data_.collect();
  }
  // In the step just taken.
  bool is_due(const std::optional<Duration>& every) const { return crossed(every, before_, state_.point()); }

  // Collective. What was usual before tells nothing once the objective, the data or the model are others; how many
  // steps in a row were skipped does.
  LossHistory usual_losses() const {
    const auto of = context_.trainers.broadcast(context_.config.losses_of);  // each has read the model's files itself
    const auto& before = state_.losses;
    if (before.of == of) return before;
    if (is_root() && before.steps > 0)
      log::info("what decides the loss is not what it was: the guard learns anew how large losses are");
    return {.skips_in_a_row = before.skips_in_a_row, .first_skip = before.first_skip, .of = of};
  }

  // Collective.
  std::unique_ptr<Progress> open_progress() const {
    const LoopConfig& config = context_.config;
    const double total_steps = last_step(config.duration, state_.point(), config.batch.global).value_or(0);
    std::unique_ptr<Progress> progress;
    on_root(context_.trainers, [&] {
      progress =
          std::make_unique<Progress>(Progress::Options{.run_dir = config.run_dir,
                                                       .resumed_step = state_.step,
                                                       .begins_elsewhere = begins_elsewhere(context_, state_.step),
                                                       .tensorboard = config.log.tensorboard,
                                                       .ids = config.log.ids,
                                                       .total_steps = total_steps,
                                                       .prometheus = config.log.prometheus,
                                                       .lease = context_.lease});
    });
    return progress;
  }

  // One optimizer step; false when all trainers have agreed to leave instead.
  bool step() {
    const auto number = state_.step + 1;
    log::set_step(number);
    const Stopwatch watch;
    const double waited_before = phase::waited_seconds;
    const auto wait = leaving_.wait_for_batches(saves_.seconds_needed());
    if (!wait) {
      log::set_step(state_.step);
      if (is_root()) log::info("stopped by {}", leaving_.reason());
      return false;
    }
    lr_ = learning_rate(schedule_, number, state_.samples + context_.config.batch.global);
    const auto totals = state_.is_used_up(number) ? pass_over() : train(*wait, watch, waited_before);
    if (bad_) return false;

    phase::current = phase::accounting;
    write_ids();
    const bool validated = validate_if_due();
    if (validated || is_due(context_.config.log.every)) write_metrics();
    paint_if_due();
    saves_.after_step(totals.writing > 0, is_save_due(totals), seconds());
    steady(context_);
    return true;
  }

  // A step whose batch was bad the first time: it is used up.
  StepTotals pass_over() {
    phase::current = phase::accounting;
    StepTotals totals{.loss = std::nan("")};
    add_wishes(totals);
    totals.reduce(context_.trainers);
    ++state_.skipped;
    if (is_root()) log::info("step {} is left out, as it was bad before", state_.step + 1);
    advance(totals);
    account_.pass_over();
    return totals;
  }

  // `waited_before`: phase::waited_seconds as of the start of `watch`.
  StepTotals train(const SampleWait& wait, const Stopwatch& watch, double waited_before) {
    const bool is_first = !std::exchange(has_trained_, true);
    if (is_first) set_wait_limit(context_, phase::slow_factor);
    phase::current = is_first ? phase::first_step : phase::training;
    const auto totals = update_weights();
    if (bad_) return totals;
    advance(totals);
    if (is_first) tell_start(wait.longest);
    account_.add(totals.loss, totals.norm(), totals.parts,
                 {watch.seconds(), wait, phase::waited_seconds - waited_before});
    leaving_.step_took(watch.seconds() - wait.longest);
    return totals;
  }

  // Forward, backward and the optimizer's step, unless the guard skips that.
  StepTotals update_weights() {
    const bool is_recorded = std::ranges::count(context_.config.record.steps, state_.step + 1) > 0;
    if (is_recorded) context_.task.start_record();
    StepTotals totals = forward_backward(is_recorded);
    add_wishes(totals);
    totals.reduce(context_.trainers);
    compare_weights_if_due(totals);
    if (is_recorded) record(totals);
    update(totals);
    tell_graph();
    return totals;
  }

  void add_wishes(StepTotals& totals) const {
    totals.writing = saves_.busy() ? 1 : 0;
    totals.save = is_root() && saves_.wants(seconds()) ? 1 : 0;
    totals.clock = is_root() ? seconds() : 0;
  }

  // What is due in the middle of bad steps waits for their end, where training may go back to before them: they must
  // not push the checkpoints from there out of the ones that are kept.
  bool is_save_due(const StepTotals& totals) {
    const auto& every = context_.config.checkpoint.every;
    is_save_owed_ = is_save_owed_ || totals.save > 0 || (every && is_due(every->value));
    const bool goes_back = context_.config.guard.on_repeat == GuardConfig::OnRepeat::rollback;
    if (goes_back && guard_.history().skips_in_a_row > 0) return false;
    return std::exchange(is_save_owed_, false);
  }

  // Where parameters are split, forward and backward are collective.
  std::int64_t turns_of_all(std::int64_t own_turns) const {
    if (!context_.model.plan().splits_parameters()) return own_turns;
    return context_.trainers.largest(own_turns);
  }

  // Loss and gradients of this trainer's local batch; afterwards the gradient shards hold the mean over the global
  // batch.
  StepTotals forward_backward(bool is_recorded) {
    const std::int64_t local_batch = std::ssize(context_.task.refs()), micro = context_.config.batch.micro;
    const auto turns = turns_of_all(count_micro_batches(local_batch, micro));
    const auto loss_of = [&](const Passes::Tensors& inputs) { return context_.task.loss(inputs); };
    const auto no_loss_of = [&](const Passes::Tensors& inputs) { return 0 * loss_of(inputs); };
    const std::function<void()> look_ahead = [&] { context_.task.look_ahead(); };
    context_.model.begin_gradients(static_cast<int>(turns));
    torch::Tensor loss;
    for (const auto& [begin, end, is_extra] : micro_batches_of(local_batch, micro, turns)) {
      if (is_extra) {
        passes_.run(Passes::Kind::by_kernels, context_.task.inputs(begin, end), no_loss_of, look_ahead);
        continue;
      }
      const auto kind = is_recorded ? Passes::Kind::by_kernels : passes_.kind_of(begin / micro, turns);
      const auto part = passes_.run(kind, context_.task.inputs(begin, end), loss_of, look_ahead);
      loss = loss.defined() ? loss + part : part;
      context_.task.count_loss_parts();
      if (is_recorded && end == local_batch) record_ = context_.task.take_record();  // extra turns do not belong in it
      ++phase::moves;
    }
    context_.model.finish_gradients(look_ahead);
    const auto square_sum = context_.model.gradient_square_sum();
    DeviceWork(context_.device).synchronize(look_ahead);
    StepTotals totals;
    totals.square_sum = square_sum.item<double>();
    totals.loss = loss.item<double>();
    totals.parts = context_.task.take_loss_parts();
    return totals;
  }

  void record(const StepTotals& totals) {
    enter_slow(context_, phase::saving);
    write_record(context_.trainers, context_.config.run_dir, state_.step + 1, context_.task.refs(),
                 std::exchange(record_, {}), totals.loss, totals.norm());
    phase::current = phase::training;
  }

  void update(const StepTotals& totals) {
    const auto verdict = guard_.judge(state_.step + 1, totals.loss, totals.norm());
    if (verdict == StepGuard::Verdict::update) {
      context_.optimizer.step(lr_, clip_factor(context_.optim.clip, totals.norm()));
      return;
    }
    ++state_.skipped;
    const auto ids = batch_ids();  // collective
    tell_samples(ids);
    const auto complaint = complaint_about(totals, ids);
    if (verdict == StepGuard::Verdict::stop)
      on_root(context_.trainers, [&] {
        throw Error(
            Exit::numerics,
            fmt::format("step {}: {} ({} in a row)", state_.step + 1, complaint, guard_.history().skips_in_a_row),
            "record.steps writes a step's tensors; a lower optim.lr or float32 (model.dtype, encode.dtype) are "
            "the usual cures");
      });
    const bool goes_back = verdict == StepGuard::Verdict::go_back;
    if (goes_back) bad_ = StepRange{guard_.history().first_skip, state_.step + 1};
    if (!is_root()) return;
    log::warning("{}; {}", complaint, goes_back ? "one too many in a row" : "the update is skipped");
  }

  // For the log's file: of a step that ends the run, ids.jsonl has nothing.
  void tell_samples(const std::vector<std::string>& ids) {
    if (is_root()) log::debug("all samples of step {}: {}", state_.step + 1, fmt::join(ids, ", "));
  }

  std::string complaint_about(const StepTotals& totals, const std::vector<std::string>& ids) const {
    const auto what =
        guard_.spike() ? fmt::format("loss {:.4f} is {:.1f} standard deviations above its mean of {:.4f}", totals.loss,
                                     *guard_.spike(), guard_.history().mean)
                       : fmt::format("loss {} or gradient norm {} is not finite", std::abs(totals.loss), totals.norm());
    const auto shown = std::min<std::size_t>(ids.size(), 16);
    return fmt::format("{}; samples: {}{}", what, fmt::join(ids.data(), ids.data() + shown, ", "),
                       shown < ids.size() ? " ..." : "");
  }

  // Before the update, which would replace weights that were gathered and are damaged by good ones, although this
  // step's gradients came from them. Collective.
  void compare_weights_if_due(const StepTotals& totals) {
    const auto now = state_.point();
    const RunPoint after{now.step + 1, now.samples + context_.config.batch.global, totals.clock};
    if (context_.trainers.size() > 1 && crossed(context_.config.guard.digest_every, now, after))
      compare_weights(context_, after.step);
  }

  void advance(const StepTotals& totals) {
    before_ = state_.point();
    ++phase::steps_taken;
    ++state_.step;
    state_.samples += context_.config.batch.global;
    state_.updates = context_.optimizer.updates();
    state_.ema_updates = context_.optimizer.ema_updates();
    state_.seconds = totals.clock;
    state_.losses = guard_.history();
    saves_.advance(context_.task.refs());
    data_.add(context_.task.refs(), context_.task.take_ledger_delta());
  }

  void tell_start(double waited) const {
    const auto kernels = nn::attention_kernels(), norms = nn::norm_kernels();
    if (!is_root()) return;
    startup::done("first step");
    log::info("started in {} ({:.1f} of it waiting for samples)", startup::describe(), waited);
    if (!kernels.empty()) log::info("attention: {}", kernels);
    if (!norms.empty()) log::info("norms and GEGLU: {}", norms);
  }

  void tell_graph() {
    if (!passes_.has_graph() || std::exchange(has_told_graph_, true) || !is_root()) return;
    log::info("forward and backward: a CUDA graph from now on");
  }

  // The ids of the global batch, in batch order, on rank 0. Collective.
  std::vector<std::string> batch_ids() const { return gather_ids(context_.trainers, context_.task.refs()); }

  void write_ids() {
    if (!context_.config.log.ids) return;
    const auto ids = batch_ids();
    if (is_root()) progress_->ids(state_.step, ids);
  }

  // Collective.
  bool validate_if_due() {
    if (!context_.validation || !is_due(context_.validation->every())) return false;
    enter_slow(context_, phase::validating);
    auto losses = measure_validation_losses(context_, is_leaving());
    const bool is_measured = losses.has_value();
    if (is_measured) account_.add_validation(std::move(*losses));
    if (!is_measured && is_root()) log::info("told to stop: no validation loss of step {}", state_.step);
    phase::current = phase::accounting;
    return is_measured;
  }

  // What takes long between two steps asks this, all trainers at the same place.
  std::function<bool()> is_leaving() const {
    return [this] { return leaving_.is_wanted(saves_.seconds_needed()); };
  }

  void paint_if_due() {
    if (!context_.painter || !is_due(context_.painter->every())) return;
    const auto gives_up = [this](bool mine) { return leaving_.is_wanted(saves_.seconds_needed(), mine); };
    if (const auto seconds = pictures_.paint(state_.step, gives_up)) leaving_.pictures_took(*seconds);
  }

  // Collective: judges the data, and writes one line of metrics.
  void write_metrics() {
    data_.merge();
    if (!account_.has_steps()) return;
    auto metrics = account_.take(state_, lr_);
    metrics.checkpoint = saves_.last_saved();
    if (!is_root()) return;
    data_.tell_rows(metrics);
    progress_->metrics(metrics);
    if (context_.producer_ranks.empty()) return;
    if (const auto news = balance_.look(metrics)) log::info("balance: {}", *news);
  }

  LoopResult result() const {
    LoopResult result;
    result.finished = is_finished();
    result.bad = bad_;
    result.failure = leaving_.shared_failure();
    result.reason = result.failure ? result.failure->what() : leaving_.reason();
    result.state = state_;
    result.checkpoint = saves_.newest();
    result.is_saved = saves_.hold_all();
    result.totals = account_.totals(state_);
    result.roles = context_.roles();
    return result;
  }

  const TrainerContext context_;
  RunState state_;
  const RunPoint start_;  // where this process began
  RunPoint before_;       // before the last step
  const Stopwatch since_start_{};
  const LrSchedule schedule_;
  double lr_ = 0;
  std::map<std::string, torch::Tensor> record_;  // of the step that is being taken
  StepGuard guard_;
  std::optional<StepRange> bad_;  // in a row, one too many
  bool is_save_owed_ = false;
  bool has_trained_ = false;  // a step in this process
  bool has_told_graph_ = false;
  std::unique_ptr<Progress> progress_;  // on rank 0
  Leaving leaving_;
  DataAccount data_;
  IntervalAccount account_;
  BalanceWatch balance_{context_.roles()};
  Saves saves_;
  Pictures pictures_;
  Passes passes_;
};

}  // namespace

LoopResult run_loop(TrainerContext context, RunState state) {
  return Loop(std::move(context), std::move(state)).run();
}

}  // namespace millrace
