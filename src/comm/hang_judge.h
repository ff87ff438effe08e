#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millrace {

// What a rank says about itself.
struct Sign {
  std::string phase;
  std::string awaited;  // the collective in which it waits for others; empty = none
  bool leaves = false;
  std::int64_t step = 0;
  double still_seconds = 0;      // for which nothing of this has changed, nor a wait or micro-batch ended
  double slow_step_seconds = 0;  // SlowStep::seconds, over all ranks where rank 0 says it
};

// How long the slowest of this process's recent steps took, as seen by somebody who looks now and then. A slow step is
// forgotten over some hundred others. Times are seconds on one clock.
class SlowStep {
 public:
  void look(const std::string& phase, std::int64_t step, double now);
  // The present step does not count: the clock has stood, or nobody has looked.
  void pass_over(double now);
  double seconds() const;  // 0 = too few steps so far

 private:
  std::int64_t first_step_ = 0, newest_step_ = 0;  // 0 = none
  std::int64_t step_ = 0;                          // under way; 0 = none
  double since_ = 0, looked_ = 0, seconds_ = 0;
};

struct Standstill {
  int rank = 0;
  bool is_silent = false;  // else it says itself that it stands still
  double seconds = 0;
  bool is_one_of_many = false;  // ranks of other hosts have stood still, waiting for nobody, since the same moment
};

// Decides from the ranks' signs who hangs: NOTE [Watchdog]. All ranks judge whether rank 0 is silent, and rank 0 judges
// the rest.
class HangJudge {
 public:
  // `self`: the rank that judges.
  HangJudge(int self, std::vector<std::string> hosts, double limit_seconds);

  // Signs of this rank itself count too: they tell what the run does.
  void hear(int rank, const Sign& sign, double now);
  // Nobody was silent, or stood still, before `now`: this rank itself was not running.
  void restart(double now);

  // The worst suspect: one that is silent rather than one that stands still, since the others may wait for it outside
  // of collectives; of those the one for longest.
  std::optional<Standstill> find(double now) const;
  // Judges this rank alone.
  std::optional<Standstill> judge(int rank, double now) const { return judge(rank, now, step_limit()); }

  double slow_step_seconds() const;      // of all ranks that were heard of
  std::vector<int> never_heard() const;  // ranks that have sent nothing so far: nobody can judge them
  const Sign* sign_of(int rank) const;

 private:
  struct Known {
    Sign last;
    double heard = 0;
    bool was_heard = false;
    std::int64_t first_step = 0;  // of which it was heard; 0 = none
  };

  bool is_here(int rank) const {
    return hosts_[static_cast<std::size_t>(rank)] == hosts_[static_cast<std::size_t>(self_)];
  }
  double step_limit() const;
  std::optional<Standstill> judge(int rank, double now, double learned) const;
  std::optional<double> overlong_silence(int rank, double now, double learned) const;
  double still_limit(const Known& known, double learned) const;
  bool others_stand_still_with(int rank) const;

  static constexpr double never = -1e9;

  const int self_;
  const std::vector<std::string> hosts_;
  const double limit_;
  std::vector<Known> ranks_;
  std::int64_t step_ = 0;                               // the newest of any rank
  double moved_ = 0;                                    // when it became that
  double steps_heard_ = never;                          // when somebody last said that it trains
  double others_heard_ = never, others_since_ = never;  // other hosts: last, and without a gap since then
};

}  // namespace millrace
