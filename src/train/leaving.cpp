#include "leaving.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

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

Leaving::Leaving(const TrainerContext& context, const LatePatience& patience)
    : context_(context), patience_(patience), job_end_(end_of_job(context.is_root())) {}

std::optional<SampleWait> Leaving::wait_for_batches(double save_seconds) {
  phase::current = phase::waiting_for_samples;
  double waited = 0, complained_at = 0;  // in which this process was awake
  double until_there = 0;
  bool is_told = false;  // of a late producer, in this wait
  for (bool there = false;;) {
    const Stopwatch round;
    const bool was_there = there;
    if (!there) there = next_batch(round_seconds, waited);
    ++phase::moves;
    if (!was_there) until_there += round.seconds();
    waited += awake_seconds(round.seconds());
    const auto waited_us = static_cast<std::int64_t>(1e6 * until_there);
    const auto late = there ? std::nullopt : find_late_producer(waited - complained_at);
    if (late) complained_at = waited;
    std::int64_t wishes[] = {wish_to_stop(save_seconds), failure_ ? 1 : 0, there ? 0 : 1, waited_us, late ? 1 : 0};
    context_.trainers.all_reduce_max(wishes);
    const auto [wish, failed, waiting, longest_us, any_late] = wishes;
    if (wish || failed) {
      reason_ = failed ? "an error while getting samples" : describe_wish(static_cast<int>(wish));
      return std::nullopt;
    }
    if (any_late && tell_of_late(late)) is_told = true;
    if (waiting) continue;
    const SampleWait wait{until_there, 1e-6 * static_cast<double>(longest_us)};
    if (is_told) log::info("they came after {:.0f} s", wait.longest);
    return wait;
  }
}

bool Leaving::is_wanted(double save_seconds, bool mine) const {
  return context_.trainers.any(mine || wish_to_stop(save_seconds) != 0);
}

double Leaving::seconds_left() const {
  return job_end_ - unix_seconds();
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

// `silent`: for how long this trainer waits and has not complained.
std::optional<Overdue> Leaving::find_late_producer(double silent) const {
  const double patience = is_first_ ? patience_.first : patience_.usual;
  return silent < patience ? std::nullopt : context_.task.overdue(patience);
}

// Rank 0 says it, whose log people look at, and once for all trainers of a producer. True where something was said.
// Collective.
bool Leaving::tell_of_late(const std::optional<Overdue>& mine) {
  const auto all = context_.trainers.gather_strings(mine ? nlohmann::json{mine->producer, mine->what}.dump() : "");
  bool is_told = false;
  for (const auto& text : all) {
    if (text.empty()) continue;
    const auto late = nlohmann::json::parse(text);
    const auto producer = late[0].get<int>();
    const auto [found, is_new] = told_of_.try_emplace(producer);
    if (!is_new && found->second.seconds() < patience_.again) continue;
    found->second = Stopwatch();
    log::warning("no {} ({}) for {:.0f} s", late[1].get<std::string>(), context_.producer_ranks[producer].host,
                 is_first_ ? patience_.first : patience_.usual);
    is_told = true;
  }
  return is_told;
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
  const bool is_root = context_.is_root();
  const double needed =
      2 * (std::max(longest_step_.seconds(), longest_pictures_.seconds()) + save_seconds) + reserve_seconds;
  return is_root && seconds_left() < needed ? time_is_up : 0;
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
