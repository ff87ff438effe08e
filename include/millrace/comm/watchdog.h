#pragma once
#include <functional>
#include <memory>
#include <string>

#include "millrace/comm/world.h"

namespace millrace {

// A rank that stands still.
struct Suspect {
  int rank = 0;
  std::string host;
  std::string phase;  // where it stood when it was last heard of
  std::string what;   // "rank 3 on n2 has not been heard of for 60 s; it was training step 17"
};

// NOTE [Watchdog] Who waits in a collective cannot know for whom, and a rank that hangs cannot say so. Therefore each
// rank has a thread that uses neither MPI nor a GPU and sends rank 0 a datagram a second: phase, step, the collective
// it waits in, and for how long nothing of this has changed. Rank 0 answers. A rank is suspected when nothing has come
// from it for the limit, though something did before; or when it says that it trains, or writes down what it has
// trained, and not that it waits for others, but has not moved for the limit. Producers are not: their trainers notice,
// and save first. If rank 0 is silent, the others suspect it. Where datagrams do not get through, nobody is ever
// suspected, and the limits of the collectives remain. HangJudge decides.
//
// The limit is guard.hang_timeout until twenty steps show what is usual. From then on it is twenty times the slowest of
// the recent steps, no less than a minute and never more than guard.hang_timeout. A smaller factor or floor would end
// runs that are only slow for a while: a GPU whose clock drops, another job on the node, storage that has to be waited
// for between two micro-batches, a node that swaps. All of this is a single step of a few times the usual length, and
// an end costs the steps since the last checkpoint and a start; waiting costs a minute. The learned limit holds only
//   - for what all steps do: a save, a validation and the first step happen too seldom to know what is usual, and
//     nobody who writes files is judged by it, since file systems stay away for minutes and come back. Only the thread
//     above has the same to do in every phase; its silence there may last five minutes, since memory runs short.
//   - while no rank takes a step. Else a silent rank has lost its datagrams, not its life.
//   - where datagrams get through: from a rank on the judge's host, or while some other host is heard of. Else the
//     network may be what is silent, and comes back: five minutes, too.
// A thread that has not looked for five seconds was itself asleep, and perhaps everything with it (a closed laptop, a
// suspended job): all begin anew then.
//
// Whoever is suspected, all ranks that still can write the stacks of their threads before the run ends: rank 0 tells
// them, and waits three seconds for them. NOTE [Stacks].
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

// All ranks write the stacks of their threads (core/stacks.h): for who waits in vain by limits of its own. Returns when
// they have, after `seconds` at the latest.
void collect_stacks(double seconds);

}  // namespace millrace
