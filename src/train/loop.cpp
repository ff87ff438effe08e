#include "millrace/train/loop.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "millrace/checkpoint/cadence.h"
#include "millrace/checkpoint/reader.h"
#include "millrace/checkpoint/writer.h"
#include "millrace/comm/agree.h"
#include "millrace/comm/fault.h"
#include "millrace/comm/watchdog.h"
#include "millrace/core/clock.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/phase.h"
#include "millrace/core/startup.h"
#include "millrace/core/stop.h"
#include "millrace/core/stopwatch.h"
#include "millrace/dataset/storage_retry.h"
#include "millrace/nn/device.h"
#include "millrace/train/record.h"
#include "millrace/train/state_file.h"
#include "step_guard.h"
#include "straggler.h"

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
  bool finite() const { return std::isfinite(loss) && std::isfinite(square_sum); }
};

// Sums over the steps since the last line of metrics.
struct Interval {
  std::int64_t steps = 0, finite_steps = 0;
  double loss = 0, grad_norm = 0, step_seconds = 0, wait_seconds = 0;
  std::int64_t own_steps = 0;  // all but the first one of this process, which may compile and tune
  double own_seconds = 0;      // in these, of this trainer, without waiting for samples or others

  void add(const StepTotals& totals, double step, double wait) {
    ++steps;
    if (totals.finite()) ++finite_steps, loss += totals.loss, grad_norm += totals.norm();
    step_seconds += step;
    wait_seconds += wait;
  }
  void add_own(double own) {
    ++own_steps;
    own_seconds += own;
  }
};

std::vector<std::string> hosts_of(const std::vector<RankOnHost>& ranks) {
  std::vector<std::string> hosts;
  for (const auto& [rank, host] : ranks) hosts.push_back(host);
  return hosts;
}

constexpr int time_is_up = 1000;  // among the numbers of signals
constexpr double reserve_seconds = 30;
constexpr double slow_disk = 50e6;  // bytes per second of one writer

// Unix seconds; far away outside of a job, and where Slurm does not say.
double job_end() {
  for (const char* name : {"MILLRACE_END_TIME", "SLURM_JOB_END_TIME"})
    if (const char* text = std::getenv(name); text && std::atof(text) > 0) return std::atof(text);
  return std::numeric_limits<double>::infinity();
}

class Loop {
 public:
  Loop(TrainerContext context, RunState state)
      : context_(std::move(context)),
        state_(std::move(state)),
        schedule_(plan_lr_schedule(context_.optim, context_.config.duration, context_.config.batch.global)),
        writer_(context_.config.run_dir, context_.trainers, state_.point(),
                {.keep = context_.config.checkpoint.keep,
                 .keep_every = context_.config.checkpoint.keep_every,
                 .hosts = hosts_of(context_.trainer_ranks),
                 .lease = context_.lease}),
        state_file_(context_.config.run_dir, context_.lease),
        ledger_(context_.data),
        guard_(context_.config.guard),
        resumed_(state_.point()),
        before_(state_.point()) {
    for (const auto& [kind, shards] : context_.optimizer.state())
      for (const auto& shard : shards) guessed_save_seconds_ += 4.0 * static_cast<double>(shard.numel()) / slow_disk;
    const auto ledger = std::exchange(state_.ledger, {});
    if (!is_root()) return;
    if (!ledger.empty()) ledger_.load_state(ledger);
    progress_ = std::make_unique<Progress>(
        Progress::Options{context_.config.run_dir, state_.step, context_.config.log.tensorboard,
                          context_.config.log.ids, steps_of(context_.config.duration, context_.config.batch.global)});
  }

  LoopResult run() try {
    allow(5);
    while (!reached(context_.config.duration, state_.point()) && step()) {
    }
    phase::current = phase::saving;
    allow(5);
    stop_producers();
    if (!reason_.empty()) write_state();
    account_interval();
    save_last();
    return result();
  } catch (...) {
    fault::leaving();
    throw;
  }

 private:
  bool is_root() const { return context_.trainers.rank() == 0; }

  // One optimizer step; false when all trainers have agreed to leave instead.
  bool step() {
    const auto number = state_.step + 1;
    log::set_step(number);
    const Stopwatch step_watch;
    const double waited_before = phase::waited_seconds;
    double wait = 0;
    if (!wait_for_batches(wait)) return false;
    phase::current = state_.step == resumed_.step ? phase::first_step : phase::training;

    const bool record = std::find(context_.config.record.steps.begin(), context_.config.record.steps.end(), number) !=
                        context_.config.record.steps.end();
    if (record) context_.task.start_record();
    StepTotals totals = forward_backward();
    totals.reduce(context_.trainers);
    if (record) {
      allow(5);
      phase::current = phase::saving;
      write_record(context_.trainers, context_.config.run_dir, number, context_.task.refs(),
                   context_.task.take_record(), totals.loss, totals.norm());
      phase::current = phase::training;
    }

    update(totals);
    advance(totals);
    if (is_root() && state_.step == resumed_.step + 1) tell_start(wait);
    interval_.add(totals, step_watch.seconds(), wait);
    if (state_.step != resumed_.step + 1)
      interval_.add_own(step_watch.seconds() - wait - (phase::waited_seconds - waited_before));
    phase::current = phase::accounting;
    write_ids();
    const bool validated = validate_if_due();
    if (validated || is_due(context_.config.log.every)) account_interval();
    save_if_due();
    before_ = state_.point();
    longest_step_ = std::max(longest_step_, step_watch.seconds() - wait);
    allow(1);
    return true;
  }

  void tell_start(double wait) const {
    startup::done("first step");
    log::info("started in {} ({:.1f} of it waiting for samples)", startup::describe(), wait);
  }

  // How often guard.hang_timeout, which is for the steady state, ranks may wait for each other from now on: loading,
  // the first step, validation and saves take longer. A little more than the watchdog waits, which knows who hangs and
  // never waits longer than guard.hang_timeout, and for the stacks after it.
  void allow(double times) const { context_.trainers.set_time_limit(times * context_.max_wait_seconds + 15); }

  // NOTE [Leaving together] A step begins when every trainer has its batch, or not at all: the trainers look at each
  // other about once a second while one of them waits for samples. So a trainer that is told to stop, and one whose
  // producer has died, take all others with them at a step's border, where the state is whole and can be saved.
  // `waited`: seconds that this trainer waited for its own samples.
  bool wait_for_batches(double& waited) {
    constexpr double round_seconds = 1;
    phase::current = phase::waiting_for_samples;
    for (bool there = false;;) {
      const Stopwatch round;
      if (!there) there = next_batch(round_seconds, waited);
      ++phase::moves;
      waited += round.seconds();
      std::int64_t wishes[] = {wish_to_stop(), failure_ ? 1 : 0, there ? 0 : 1};
      context_.trainers.all_reduce_max(wishes);
      if (const auto [wish, failed, waiting] = wishes; wish || failed) {
        reason_ = failed ? "a producer" : describe_wish(static_cast<int>(wish));
        return false;
      } else if (!waiting) {
        return true;
      }
    }
  }

  // An error of a producer is kept until the state is safe.
  bool next_batch(double seconds, double waited) {
    try {
      if (context_.task.next_batch(seconds)) return true;
    } catch (const ReadingStopped&) {  // by a signal, which the others are about to hear of
      return false;
    } catch (const RelayedError& error) {
      failure_ = error;
      return false;
    } catch (...) {
      failure_ = present_error();
      fault::write(*failure_);
      return false;
    }
    const double limit = context_.max_wait_seconds * (state_.step == resumed_.step ? 5 : 1);
    if (const auto overdue = waited < limit ? std::nullopt : context_.task.overdue(limit)) {
      failure_ = Error(Exit::timeout, fmt::format("no {} for {:.0f} s", overdue->what, limit),
                       "look at that rank's log, and at log/stacks-rank-*.txt of the run for where every rank stood; "
                       "guard.hang_timeout sets the limit");
      collect_stacks(4);
      if (context_.on_silent_producer) context_.on_silent_producer(*overdue, *failure_);
    }
    return false;
  }

  // The save may take a while: producers need not encode on. Talking to one that is gone must not keep the others from
  // saving.
  void stop_producers() {
    try {
      context_.task.stop_producers();
    } catch (...) {
      if (!failure_) failure_ = present_error();
    }
  }

  double queue_fill() {
    try {
      return context_.task.queue_fill();
    } catch (...) {  // comes out of the next batch
      return 0;
    }
  }

  // A signal's number, `time_is_up`, or 0.
  int wish_to_stop() const {
    if (stop::requested()) return stop::signal_number();
    if (const int signal = context_.task.producer_signal()) return signal;
    const double saving = context_.config.checkpoint.every ? save_seconds_.value_or(guessed_save_seconds_) : 0;
    return is_root() && job_end_ - unix_seconds() < 2 * (longest_step_ + saving) + reserve_seconds ? time_is_up : 0;
  }

  static std::string describe_wish(int wish) {
    if (wish == time_is_up) return "the job's time limit";
    return fmt::format("signal {} ({})", wish, ::strsignal(wish));
  }

  // In the step just taken.
  bool is_due(const std::optional<Duration>& every) const { return crossed(every, before_, state_.point()); }

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
    totals.writing = writer_.busy() ? 1 : 0;
    totals.save = is_root() && wants_to_save() ? 1 : 0;
    totals.clock = is_root() ? seconds() : 0;
    return totals;
  }

  double seconds() const { return resumed_.seconds + since_start_.seconds(); }

  // With checkpoint.every=auto: by the cost of the last save.
  bool wants_to_save() const {
    if (writer_.in_flight() || writer_.reads_back()) return false;
    return seconds() - saved_at_ >= auto_save_interval(save_cost_, context_.trainers.size());
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
    ++state_.step;
    state_.samples += context_.config.batch.global;
    state_.updates = context_.optimizer.updates();
    state_.ema_updates = context_.optimizer.ema_updates();
    state_.seconds = totals.clock;
    for (const auto& ref : context_.task.refs()) own_cursors_[ref.stripe] = ref.after;
    delta_.append(context_.task.take_ledger_delta());
    all_written_ = totals.writing == 0;
    const auto& every = context_.config.checkpoint.every;
    save_is_due_ = every && (every->value ? is_due(every->value) : totals.save > 0);
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

  // With the weights that `export` gives: the EMA where there is one. Collective.
  bool validate_if_due() {
    if (!context_.validation || !is_due(context_.validation->every())) return false;
    allow(5);
    phase::current = phase::validating;
    const auto measure = [&] { validation_loss_ = context_.validation->loss(context_.trainers); };
    if (context_.optimizer.has_ema()) {
      context_.optimizer.with_ema(measure);
    } else {
      measure();
    }
    phase::current = phase::accounting;
    return true;
  }

  void write_ids() {
    if (!context_.config.log.ids) return;
    const auto ids = batch_ids();
    if (is_root()) progress_->ids(state_.step, ids);
  }

  // Collective: merges the producers' ledger deltas, judges the data, and writes one line of metrics.
  void account_interval() {
    merge_ledger();
    if (interval_.steps == 0) return;
    const auto producers = producer_reports();
    double fill = queue_fill() / context_.trainers.size();
    context_.trainers.all_reduce_sum(std::span(&fill, 1));
    double memory = static_cast<double>(peak_memory_bytes(context_.device)) / (1 << 30);
    context_.trainers.all_reduce_max(std::span(&memory, 1));
    double wait = interval_.wait_seconds / context_.trainers.size();
    context_.trainers.all_reduce_sum(std::span(&wait, 1));
    const auto own = own_seconds();

    Metrics m;
    m.step = state_.step;
    m.samples = state_.samples;
    m.skipped = state_.skipped;
    const double nan = std::nan("");
    m.loss = interval_.finite_steps ? interval_.loss / interval_.finite_steps : nan;
    m.grad_norm = interval_.finite_steps ? interval_.grad_norm / interval_.finite_steps : nan;
    m.lr = lr_;
    m.images_per_second = interval_.steps * context_.config.batch.global / interval_.step_seconds;
    m.step_ms = 1000 * interval_.step_seconds / interval_.steps;
    m.data_wait_ms = 1000 * wait / interval_.steps;
    account_producers(producers, m);
    m.validation_loss = std::exchange(validation_loss_, std::nullopt);
    m.validated_ema = context_.optimizer.has_ema();
    m.queue_fill = fill;
    account_trainers(own, m);
    m.memory_gib = memory;
    m.elapsed_seconds = state_.seconds;
    if (is_root()) progress_->metrics(m);
    totals_.loss = m.loss;
    totals_.grad_norm = m.grad_norm;
    totals_.lr = m.lr;
    totals_.step_ms += 1000 * interval_.step_seconds;
    totals_.data_wait_ms += 1000 * wait;
    totals_.memory_gib = memory;
    interval_ = {};
  }

  // What every trainer took for a step of its own work, not a number before the second step; where some have more
  // samples than others, for as many samples as they all have on average. Collective.
  std::vector<double> own_seconds() const {
    std::vector<double> all(static_cast<std::size_t>(context_.trainers.size()), 0.0);
    const double share = static_cast<double>(context_.task.refs().size()) * context_.trainers.size() /
                         static_cast<double>(context_.config.batch.global);
    all[static_cast<std::size_t>(context_.trainers.rank())] =
        interval_.own_seconds / static_cast<double>(interval_.own_steps) / share;
    context_.trainers.all_reduce_sum(std::span<double>(all));
    return all;
  }

  void account_trainers(const std::vector<double>& own, Metrics& m) {
    const auto slowest = find_slowest(own);
    m.straggler = slowest.ratio;
    m.slowest_rank = context_.trainer_ranks.at(slowest.place).rank;
    if (is_root()) tell("trains", context_.trainer_ranks, slow_trainers_.look(own, interval_.own_steps));
  }

  // An image in the encoders, whatever else their rank does.
  void account_encoders(const std::vector<ProducerReport>& reports) {
    each_before_.resize(reports.size());
    std::vector<double> seconds;
    for (std::size_t i = 0; i < reports.size(); ++i) {
      ProducerReport since = reports[i];
      since.add(each_before_[i], -1);
      seconds.push_back(since.images > 0 ? since.encode_seconds / since.images : std::nan(""));
    }
    each_before_ = reports;
    if (is_root()) tell("encodes", context_.producer_ranks, slow_producers_.look(seconds, interval_.steps));
  }

  static void tell(const char* works, const std::vector<RankOnHost>& ranks,
                   const std::vector<StragglerWatch::News>& news) {
    for (const auto& [place, ratio, is_slow, steps] : news) {
      const auto& [rank, host] = ranks.at(place);
      if (is_slow)
        log::warning("rank {} on {} {} {:.2f} times as long as the median for the same work, for {} steps", rank, host,
                     works, ratio, steps);
      else
        log::info("rank {} on {} {} no longer than others any more", rank, host, works);
    }
  }

  // The newest report of every producer; each reports to several trainers. Collective.
  std::vector<ProducerReport> producer_reports() {
    using Numbers = std::array<double, sizeof(ProducerReport) / sizeof(double)>;
    constexpr std::size_t count = std::tuple_size_v<Numbers>;
    std::vector<double> all(count * context_.producer_ranks.size(), 0.0);
    for (const auto& [producer, report] : context_.task.producer_reports())
      std::ranges::copy(std::bit_cast<Numbers>(report), all.begin() + static_cast<std::ptrdiff_t>(count) * producer);
    context_.trainers.all_reduce_max(std::span<double>(all));  // they only grow
    std::vector<ProducerReport> newest;
    for (auto at = all.begin(); at != all.end(); at += count) {
      Numbers numbers;
      std::copy_n(at, count, numbers.begin());
      newest.push_back(std::bit_cast<ProducerReport>(numbers));
    }
    return newest;
  }

  void account_producers(const std::vector<ProducerReport>& reports, Metrics& m) {
    const auto rate = [](const ProducerReport& report) {
      return report.encode_seconds > 0 ? report.images / report.encode_seconds : 0;
    };
    ProducerReport all;
    each_before_.resize(reports.size());
    double rate_now = 0, rate_ever = 0;
    for (std::size_t i = 0; i < reports.size(); ++i) {
      ProducerReport since = reports[i];
      since.add(each_before_[i], -1);
      rate_now += rate(since);
      rate_ever += rate(reports[i]);
      all.add(reports[i]);
    }
    account_encoders(reports);
    ProducerReport since = all;
    since.add(producers_before_, -1);
    // Else no parcel came: what was true is still the best guess.
    if (since.seconds > 0) stages_ = shares_of(since);
    if (rate_now > 0) encode_rate_ = rate_now;
    producers_before_ = all;
    m.stages = stages_;
    m.encode_images_per_second = encode_rate_;
    totals_.encode_images_per_second = rate_ever;
    totals_.stages = shares_of(all);
  }

  // Collective: rank 0 counts what all producers have seen.
  void merge_ledger() {
    const auto parts = context_.trainers.gather_strings(std::exchange(delta_, {}).to_bytes());
    on_root(context_.trainers, [&] {
      try {
        for (const auto& part : parts)
          if (!part.empty()) ledger_.merge(LedgerDelta::from_bytes(part));
        check_bad_share(ledger_, context_.data, context_.max_bad_share);
      } catch (const Error&) {
        write_ledger();
        throw;
      }
    });
  }

  void save_if_due() {
    if (all_written_ && writer_.reads_back()) settle();
    if (all_written_ && writer_.in_flight()) commit();
    if (save_is_due_) save();
  }

  // Collective, as are `commit` and `save`.
  bool settle() {
    const Stopwatch watch;
    allow(5);
    phase::current = phase::saving;
    const bool is_safe = writer_.settle();
    save_cost_ += watch.seconds();
    save_seconds_ = std::max(save_seconds_.value_or(0), since_save_.seconds());
    if (!is_safe) write_state();
    return is_safe;
  }

  void commit() {
    const Stopwatch watch;
    allow(5);
    phase::current = phase::saving;
    const bool published = writer_.commit();
    save_cost_ += watch.seconds();
    save_seconds_ = std::max(save_seconds_.value_or(0), since_save_.seconds());
    if (published) write_state();
  }

  void write_state() const {
    if (is_root())
      state_file_.update(reason_.empty() ? "running" : "stopping", writer_.last_point(), last_checkpoint(), reason_);
  }

  std::optional<std::string> last_checkpoint() const {
    if (writer_.last_step() == 0) return context_.resumed_from;
    return (std::filesystem::path(context_.config.run_dir) / "checkpoints" / step_name(writer_.last_step())).string();
  }

  void save() {
    if (writer_.in_flight()) commit();
    if (writer_.reads_back()) settle();
    allow(5);
    phase::current = phase::saving;
    since_save_ = Stopwatch();
    merge_ledger();
    gather_cursors();
    if (is_root()) {
      progress_->flush();
      state_.ledger = ledger_.state_json();
      write_ledger();
    }
    writer_.start(context_.model, context_.optimizer, state_, context_.manifest_extra);
    save_cost_ = since_save_.seconds();
    saved_at_ = seconds();
  }

  // The places of all stripes, in rank 0's state. A trainer sends those of its own stripes, which nobody else has
  // moved.
  void gather_cursors() {
    const auto parts = context_.trainers.gather_strings(to_bytes(own_cursors_));
    if (!is_root()) return;
    StripeCursors cursors;
    for (const auto& part : parts) cursors.merge(cursors_from_bytes(part));
    const bool again = state_.step == cursors_step_;  // the save that this one repeats has failed
    check_all_moved(again ? StripeCursors{} : state_.cursors, cursors, context_.data.stripes.stripes);
    state_.cursors = std::move(cursors);
    cursors_step_ = state_.step;
  }

  // For people: what a resume needs of it is in the checkpoint. So a full disk is no reason to stop.
  void write_ledger() const {
    if (context_.lease && !context_.lease->is_ours()) return;
    try {
      write_file_atomically(std::filesystem::path(context_.config.run_dir) / "ledger.json", ledger_.report_json());
    } catch (const Error& failed) {
      log::warning("ledger.json stays as it was: {}", failed.what());
    }
  }

  // The state at the end must be on disk, unless the user wanted no checkpoints.
  void save_last() {
    if (context_.config.checkpoint.every && state_.step != resumed_.step) {
      if (writer_.in_flight()) commit();
      if (writer_.last_step() != state_.step) writer_.give_up_reading_back();
      bool is_saved = writer_.last_step() == state_.step && settle();
      for (int attempt = 0; !is_saved && attempt < 2; ++attempt) {
        save();
        commit();
        if (writer_.last_step() != state_.step) break;  // the disk refuses
        is_saved = settle();                            // or loses what it took
      }
      if (!is_saved)
        throw AgreedError(
            Error(Exit::io, fmt::format("the last checkpoint, of step {}, could not be written", state_.step),
                  "earlier checkpoints are untouched; make room on the disk and start again"),
            context_.trainers);
    }
    merge_ledger();
    if (is_root()) write_ledger();
  }

  LoopResult result() {
    LoopResult result;
    result.finished = reached(context_.config.duration, state_.point());
    result.failure = shared_failure();
    result.reason = result.failure ? result.failure->what() : reason_;
    result.state = state_;
    result.checkpoint = last_checkpoint();
    const auto steps = state_.step - resumed_.step;
    totals_.step = state_.step;
    totals_.samples = state_.samples;
    totals_.skipped = state_.skipped;
    totals_.elapsed_seconds = state_.seconds;
    if (steps > 0) {
      totals_.images_per_second =
          totals_.step_ms > 0 ? 1000.0 * steps * context_.config.batch.global / totals_.step_ms : 0;
      totals_.step_ms /= steps;
      totals_.data_wait_ms /= steps;
    }
    result.totals = totals_;
    return result;
  }

  // That of the lowest rank that has one. Collective.
  std::optional<Error> shared_failure() const {
    try {
      agree(context_.trainers, failure_);
    } catch (const AgreedError& error) {
      return error;
    }
    return std::nullopt;
  }

  TrainerContext context_;
  RunState state_;
  LrSchedule schedule_;
  CheckpointWriter writer_;
  StateFile state_file_;
  Ledger ledger_;
  StepGuard guard_;
  std::unique_ptr<Progress> progress_;
  const RunPoint resumed_;  // where this process began
  RunPoint before_;         // before the present step
  const Stopwatch since_start_{};

  std::int64_t cursors_step_ = 0;  // at which state_.cursors were true
  StripeCursors own_cursors_;      // of this trainer's stripes, as far as this process has moved them
  LedgerDelta delta_;
  Interval interval_;
  Metrics totals_;
  ProducerReport producers_before_;  // sums up to the last line of metrics
  std::vector<ProducerReport> each_before_;
  StragglerWatch slow_trainers_, slow_producers_;
  StageShares stages_;
  double encode_rate_ = 0;
  std::optional<double> validation_loss_;  // measured after the last line of metrics
  double lr_ = 0;
  const double job_end_ = job_end();
  Stopwatch since_save_;
  // What must fit before the job's end.
  double longest_step_ = 0, guessed_save_seconds_ = 0;
  std::optional<double> save_seconds_;  // the slowest so far
  std::string reason_;                  // to leave before the duration is reached
  std::optional<Error> failure_;        // a producer's, as this trainer has seen it
  bool all_written_ = true, save_is_due_ = false;
  double saved_at_ = resumed_.seconds;  // in training
  double save_cost_ = 0;                // seconds that training stood still for the last save
};

}  // namespace

LoopResult run_loop(TrainerContext context, RunState state) {
  return Loop(std::move(context), std::move(state)).run();
}

}  // namespace millrace
