#pragma once
#include <functional>
#include <memory>
#include <string>

#include "millrace/comm/world.h"

namespace millrace {

// A rank that hangs.
struct Suspect {
  int rank = 0;
  std::string host;
  std::string phase;  // where it stood, and in which step, when it was last heard of
  std::int64_t step = 0;
  std::string what;             // "rank 3 on n2 has not been heard of for 60 s; it was training step 17"
  bool is_one_of_many = false;  // ranks of other hosts stand still with it: any of them may be the cause
};

// NOTE [Watchdog] A rank that waits in a collective cannot know for whom, and a rank that hangs cannot say so.
// Therefore each rank has a thread that uses neither MPI nor a GPU and sends rank 0 a datagram a second: phase, step,
// the collective it waits in, and for how long nothing of this has changed. Rank 0 answers, and judges the others; they
// judge rank 0, by its silence alone. HangJudge decides. Two things make a rank suspect, and both only while no rank
// begins a step, since a step needs every trainer:
//   - it is silent: nothing has come from it, though something did before;
//   - it stands still: it says that it waits for nobody, and that nothing of it has changed.
// Producers are not judged: their trainers notice, and save first.
//
// A rank may be silent for guard.hang_timeout until twenty steps have shown what is usual. From then on the limit is
// twenty times the slowest of the recent steps, at least a minute and never more than guard.hang_timeout. A smaller
// factor or floor would end runs that are only slow for a while: a GPU whose clock drops, another job on the node,
// storage that has to be waited for between two micro-batches, a node that swaps. Each of these is a single step of a
// few times the usual length; ending the run costs the steps since the last checkpoint and a start, waiting costs a
// minute. The limit is five minutes at least
//   - in phases that come seldom, a save for instance: memory runs short;
//   - while no datagrams of other hosts get through: the network may be what is silent. When it comes back, silence
//     counts from then on, since hosts come back one after the other.
// If steps were taken while a rank was silent, its silence proves nothing any more: its datagrams are lost, and the
// limits of the collectives remain. A producer that hears of no trainer judges by the whole guard.hang_timeout, and
// only if none of its parcels was taken for as long.
//
// Standing still has the same limit in training only. Between two steps, where files are written, and while waiting for
// samples, which is looked at every second, it is guard.hang_timeout: file systems stay away for minutes and come back.
// A line of the log that is not written yet counts as between two steps. For planning and loading, the first samples,
// the first step, validation, pictures and saves, and for a batch of preprocess, it is five times guard.hang_timeout,
// which is also how long others wait (train/pace.h). A rank that is ending, or that has sent nothing since the start,
// is not judged.
//
// A thread that has not looked for five seconds was itself asleep, and perhaps everything with it (a closed laptop, a
// suspended job): all of its clocks start anew then.
//
// When a rank is suspect, all ranks that still can write the stacks of their threads before the run ends: rank 0 tells
// them, and waits three seconds for them. NOTE [Stacks]. If the rank is no longer suspect by then, the run goes on.
// Otherwise the rank that judged ends, which most launchers answer by ending all; where they do not, the others end 45
// seconds later.
class Watchdog {
 public:
  // `on_hang` is called once, after the stacks, from the thread, on rank 0, or on the others when rank 0 is the
  // suspect; it should end the process. `limit_seconds` is at least 10. Collective over the world.
  Watchdog(const World& world, double limit_seconds, std::function<void(const Suspect&)> on_hang);
  ~Watchdog();  // tells the others that this rank leaves in order

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// How much longer than the watchdog ranks wait for each other: it knows who hangs, and stacks are written after it.
inline constexpr double watchdog_lead_seconds = 15;

// Makes all ranks write the stacks of their threads (core/stacks.h): for callers that have waited in vain by a limit of
// their own. Returns when the ranks have done so, after `seconds` at the latest.
void collect_stacks(double seconds);

}  // namespace millrace
