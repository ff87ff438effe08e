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
// from it for the limit, though something did before; or when it says that it trains, and not that it waits for others,
// but has not moved for the limit. Producers are not: their trainers notice, and save first. If rank 0 is silent, the
// others suspect it. Where datagrams do not get through, nobody is ever suspected, and the limits of the collectives
// remain.
class Watchdog {
 public:
  // `on_hang` is called once, from the thread, on rank 0, or on the others when rank 0 is the suspect; it should end
  // the process. `limit_seconds` is at least 10. Collective over the world.
  Watchdog(const World& world, double limit_seconds, std::function<void(const Suspect&)> on_hang);
  ~Watchdog();  // tells the others that this rank leaves in order

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace
