#include "hang_judge.h"

#include <algorithm>

#include "millrace/core/phase.h"

namespace millrace {
namespace {

constexpr std::int64_t enough_steps = 20;
constexpr double forgotten = 0.01;  // of a slow step, at each step that comes after it

// Of what is learned: a step may take twenty times as long as others, once, and a thread may not run for a minute.
constexpr double slow_steps = 20, min_learned_seconds = 60;
constexpr double outage_seconds = 300;  // until a switch is back, or a rank that loads or saves gets its memory
constexpr double heard_lately_seconds = 5;

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
  ranks_.at(static_cast<std::size_t>(rank)) = {sign, now, true};
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

double HangJudge::slow_step_seconds() const {
  double slowest = 0;
  for (const Known& known : ranks_) slowest = std::max(slowest, known.last.slow_step_seconds);
  return slowest;
}

// What follows from the steps so far, if that is less than the full limit.
double HangJudge::step_limit() const {
  const double slow = slow_step_seconds();
  return slow > 0 ? std::max(min_learned_seconds, slow_steps * slow) : limit_;
}

// Datagrams from where this rank is: its own host, or the network.
bool HangJudge::is_reached(int rank, double now) const {
  const auto host_of = [&](std::size_t i) -> const std::string& { return hosts_[i]; };
  const auto& here = host_of(static_cast<std::size_t>(self_));
  if (host_of(static_cast<std::size_t>(rank)) == here) return true;
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    if (ranks_[i].was_heard && host_of(i) != here && now - ranks_[i].heard < heard_lately_seconds) return true;
  return false;
}

double HangJudge::silence_limit(int rank, double now) const {
  const std::string& phase = ranks_[static_cast<std::size_t>(rank)].last.phase;
  const bool steps = phase == phase::training || phase == phase::waiting_for_samples || phase == phase::accounting;
  const double learned = step_limit();
  return steps && is_reached(rank, now) ? learned : std::max(learned, outage_seconds);
}

std::optional<Standstill> HangJudge::find(double now) const {
  // A run that goes on has lost datagrams, not a rank; a producer that has lost rank 0 cannot tell.
  const bool sees_steps = self_ == 0 || ranks_[static_cast<std::size_t>(self_)].last.step > 0;
  const double stood = sees_steps ? now - moved_ : 0;
  const auto is_over = [&](double seconds, double learned) {
    return seconds > limit_ || (seconds > learned && stood > learned);
  };
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Known& known = ranks_[i];
    const int rank = static_cast<int>(i);
    // Trainers notice a silent producer by themselves, and save first.
    if (!known.was_heard || known.last.leaves || known.last.phase == phase::producing) continue;
    const double silent = rank == self_ ? 0 : now - known.heard;
    if (is_over(silent, silence_limit(rank, now))) return Standstill{rank, true, silent};
    if (self_ != 0 || !known.last.awaited.empty()) continue;
    const double still = known.last.still_seconds;  // who is silent may have moved since
    const bool trains = known.last.phase == phase::training;
    if ((trains || known.last.phase == phase::accounting) && is_over(still, trains ? step_limit() : limit_))
      return Standstill{rank, false, still};
  }
  return std::nullopt;
}

}  // namespace millrace
