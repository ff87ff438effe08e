#include "hang_judge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "millrace/core/phase.h"

namespace millrace {
namespace {

constexpr std::int64_t enough_steps = 20;
constexpr double forgotten = 0.01;  // of a slow step, at each step that comes after it

// Of what is learned: a step may take twenty times as long as others, once, and a thread may not run for a minute.
constexpr double slow_steps = 20, min_learned_seconds = 60;
constexpr double outage_seconds = 300;  // until a switch is back, or a rank that loads or saves gets its memory
constexpr double heard_lately_seconds = 5;
constexpr double same_moment_seconds = 2;  // signs come once a second

}  // namespace

void SlowStep::look(const std::string& phase, std::int64_t step, double now) {
  const std::int64_t present = phase == phase::training ? step : 0;
  if (present != step_) {
    if (step_ != 0) seconds_ = std::max(now - since_, (1 - forgotten) * seconds_);
    step_ = present;
    since_ = looked_;  // it may have begun right after the last look
  }
  if (first_step_ == 0) first_step_ = present;
  newest_step_ = std::max(newest_step_, present);
  looked_ = now;
}

void SlowStep::pass_over(double now) {
  step_ = 0;
  looked_ = now;
}

double SlowStep::seconds() const {
  return newest_step_ - first_step_ >= enough_steps ? seconds_ : 0;
}

HangJudge::HangJudge(int self, std::vector<std::string> hosts, double limit_seconds)
    : self_(self), hosts_(std::move(hosts)), limit_(limit_seconds), ranks_(hosts_.size()) {}

void HangJudge::hear(int rank, const Sign& sign, double now) {
  Known& known = ranks_.at(static_cast<std::size_t>(rank));
  if (sign.step > 0 && sign.step < known.last.step) step_ = sign.step - 1;  // training went back (guard.on_repeat)
  known.last = sign;
  known.heard = now;
  known.was_heard = true;
  if (known.first_step == 0) known.first_step = sign.step;
  if (!is_here(rank)) {
    if (now - others_heard_ > heard_lately_seconds) others_since_ = now;
    others_heard_ = now;
  }
  if (sign.step > 0) steps_heard_ = now;
  if (sign.step <= step_) return;
  step_ = sign.step;
  moved_ = now;
}

void HangJudge::restart(double now) {
  for (Known& known : ranks_) {
    known.heard = now;
    known.last.still_seconds = 0;
  }
  moved_ = now;
}

const Sign* HangJudge::sign_of(int rank) const {
  const Known& known = ranks_.at(static_cast<std::size_t>(rank));
  return known.was_heard ? &known.last : nullptr;
}

std::vector<int> HangJudge::never_heard() const {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    if (const int rank = static_cast<int>(i); rank != self_ && !ranks_[i].was_heard) ranks.push_back(rank);
  return ranks;
}

double HangJudge::slow_step_seconds() const {
  double slowest = 0;
  for (const Known& known : ranks_) slowest = std::max(slowest, known.last.slow_step_seconds);
  return slowest;
}

// Of a step: what follows from the steps so far, if that is less than the full limit.
double HangJudge::step_limit() const {
  const double slow = slow_step_seconds();
  return slow > 0 ? std::min(std::max(min_learned_seconds, slow_steps * slow), limit_) : limit_;
}

// Nothing = not long enough to suspect it, or it proves nothing.
std::optional<double> HangJudge::overlong_silence(int rank, double now, double learned) const {
  const Known& known = ranks_[static_cast<std::size_t>(rank)];
  const bool others_are_heard = now - others_heard_ < heard_lately_seconds;
  const bool is_reached = is_here(rank) || others_are_heard;
  // When a network comes back, hosts do so one after the other.
  const double silent = now - (!is_here(rank) && others_are_heard ? std::max(known.heard, others_since_) : known.heard);

  // A producer, for itself, has only the parcels that are taken to see whether the run goes on.
  const bool sees_steps = now - steps_heard_ < heard_lately_seconds;
  const double stood = sees_steps ? now - moved_ : ranks_[static_cast<std::size_t>(self_)].last.still_seconds;

  const std::string& phase = known.last.phase;
  const bool is_usual = phase == phase::training || phase == phase::waiting_for_samples || phase == phase::accounting;
  double limit = is_usual && is_reached ? learned : std::max(learned, outage_seconds);
  limit = sees_steps ? std::min(limit, limit_) : limit_;
  const bool took_steps = moved_ - known.heard > limit;  // while it was silent: its datagrams are lost
  if (silent <= limit || stood <= limit || took_steps) return std::nullopt;
  return silent;
}

// Of a rank that waits for nobody. As long as the others wait for it in a collective (train/pace.h).
double HangJudge::still_limit(const Known& known, double learned) const {
  const std::string& phase = known.last.phase;
  if (phase == phase::training) return learned;
  if (phase == phase::accounting) return limit_;
  if (phase == phase::waiting_for_samples)
    return (known.last.step == known.first_step ? phase::slow_factor : 1) * limit_;
  if (phase == phase::ending || phase == phase::checking) return std::numeric_limits<double>::infinity();
  return phase::slow_factor * limit_;
}

// In training, what hangs may be a transfer that all GPUs wait for without a collective of their hosts that shows it.
bool HangJudge::others_stand_still_with(int rank) const {
  const auto& suspect = ranks_[static_cast<std::size_t>(rank)].last;
  const auto& host = hosts_[static_cast<std::size_t>(rank)];
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const auto& other = ranks_[i].last;
    const bool stands = other.phase == phase::training && other.awaited.empty() && !other.leaves &&
                        std::abs(other.still_seconds - suspect.still_seconds) <= same_moment_seconds;
    if (hosts_[i] != host && stands) return true;
  }
  return false;
}

std::optional<Standstill> HangJudge::judge(int rank, double now, double learned) const {
  const Known& known = ranks_.at(static_cast<std::size_t>(rank));
  // Trainers notice a silent producer by themselves, and save first.
  if (!known.was_heard || known.last.leaves || known.last.phase == phase::producing) return std::nullopt;
  if (rank != self_)
    if (const auto silent = overlong_silence(rank, now, learned)) return Standstill{rank, true, *silent};
  if (self_ != 0 || !known.last.awaited.empty()) return std::nullopt;
  const double still = known.last.still_seconds;  // who is silent may have moved since
  if (const double limit = still_limit(known, learned); still > limit && now - moved_ > limit)
    return Standstill{rank, false, still, others_stand_still_with(rank)};
  return std::nullopt;
}

std::optional<Standstill> HangJudge::find(double now) const {
  const double learned = step_limit();
  std::optional<Standstill> worst;
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    const auto found = judge(rank, now, learned);
    if (found && (!worst || std::pair(found->is_silent, found->seconds) > std::pair(worst->is_silent, worst->seconds)))
      worst = found;
  }
  return worst;
}

}  // namespace millrace
