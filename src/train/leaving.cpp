#include "leaving.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "millrace/comm/agree.h"
#include "millrace/comm/fault.h"
#include "millrace/comm/watchdog.h"
#include "millrace/core/clock.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/phase.h"
#include "millrace/core/slurm.h"
#include "millrace/core/stop.h"
#include "millrace/core/stopwatch.h"
#include "millrace/dataset/storage_retry.h"

namespace millrace {
namespace {

constexpr int time_is_up = 1000;  // among the numbers of signals
constexpr double reserve_seconds = 30;
constexpr double round_seconds = 1;

std::string describe_wish(int wish) {
  if (wish == time_is_up) return "the job's time limit";
  return fmt::format("signal {} ({})", wish, ::strsignal(wish));
}

// A job that had no time left would not run: such an end is another job's, or has been put off.
double end_of_job(bool is_root) {
  const double now = unix_seconds();
  const auto end = slurm::job_end(now);
  if (end.at > now) return end.at;
  if (is_root)
    log::warning("{}={:.0f} is in the past: the job's end is not known, and its time limit comes unannounced",
                 end.variable, end.at);
  return slurm::JobEnd().at;
}

}  // namespace

Leaving::Leaving(const TrainerContext& context)
    : context_(context), job_end_(end_of_job(context.trainers.rank() == 0)) {}

std::optional<SampleWait> Leaving::wait_for_batches(double save_seconds) {
  phase::current = phase::waiting_for_samples;
  double waited = 0;
  for (bool there = false;;) {
    const Stopwatch round;
    if (!there) there = next_batch(round_seconds, waited);
    ++phase::moves;
    waited += awake_seconds(round.seconds());
    const auto waited_us = static_cast<std::int64_t>(1e6 * waited);
    std::int64_t wishes[] = {wish_to_stop(save_seconds), failure_ ? 1 : 0, there ? 0 : 1, waited_us};
    context_.trainers.all_reduce_max(wishes);
    const auto [wish, failed, waiting, longest_us] = wishes;
    if (wish || failed) {
      reason_ = failed ? "an error while getting samples" : describe_wish(static_cast<int>(wish));
      return std::nullopt;
    }
    if (!waiting) return SampleWait{waited, 1e-6 * static_cast<double>(longest_us)};
  }
}

bool Leaving::is_wanted(double save_seconds, bool mine) const {
  return context_.trainers.any(mine || wish_to_stop(save_seconds) != 0);
}

void Leaving::step_took(double seconds) {
  longest_step_.add(seconds);
  is_first_ = false;
}

bool Leaving::next_batch(double seconds, double waited) {
  try {
    if (context_.task.next_batch(seconds)) return true;
  } catch (const ReadingStopped&) {  // by a signal, which the others are about to hear of
    return false;
  } catch (const RelayedError& error) {
    failure_ = error;
    return false;
  } catch (...) {
    failure_ = present_error();
    fault::write_own(*failure_);
    return false;
  }
  look_for_silence(waited);
  return false;
}

void Leaving::look_for_silence(double waited) {
  const double limit = context_.config.guard.hang_seconds() * (is_first_ ? phase::slow_factor : 1);
  if (waited < limit) return;
  const auto overdue = context_.task.overdue(limit);
  if (!overdue) return;
  const auto& producer = context_.producer_ranks[overdue->producer];
  failure_ = Error(Exit::suspect_node, fmt::format("no {} for {:.0f} s (host {})", overdue->what, limit, producer.host),
                   "look at that rank's log, and at log/stacks-rank-*.txt of the run for where every rank stood; "
                   "guard.hang_timeout sets the limit");
  collect_stacks(4);
  if (context_.on_silent_producer) context_.on_silent_producer(*overdue, *failure_);
}

void Leaving::stop_producers() {
  try {
    context_.task.stop_producers();
  } catch (...) {
    if (!failure_) failure_ = present_error();
  }
}

// A signal's number, `time_is_up`, or 0.
int Leaving::wish_to_stop(double save_seconds) const {
  if (stop::requested()) return stop::signal_number();
  if (const int signal = context_.task.producer_signal()) return signal;
  const bool is_root = context_.trainers.rank() == 0;
  const double needed =
      2 * (std::max(longest_step_.seconds(), longest_pictures_.seconds()) + save_seconds) + reserve_seconds;
  return is_root && job_end_ - unix_seconds() < needed ? time_is_up : 0;
}

std::optional<Error> Leaving::shared_failure() const {
  try {
    agree(context_.trainers, failure_);
  } catch (const AgreedError& error) {
    return error;
  }
  return std::nullopt;
}

}  // namespace millrace
