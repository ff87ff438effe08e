#pragma once
#include <array>
#include <vector>

#include "millrace/comm/group.h"

namespace millrace {

// Ranks work at their own pace for hours, yet a signal to one must reach all. Each rank sends one notice to rank 0:
// early when it was told to stop, else when it is through. Rank 0 answers each with one verdict: early when anybody
// stops, else when all are through.
class ShutdownVote {
 public:
  explicit ShutdownVote(const Group& group);

  // A look in passing: whether this rank must stop.
  bool must_stop();
  // This rank has ended. Waits for all others; true when any was told to stop.
  bool wait();

 private:
  void look();
  void send(bool stop);

  const Group group_;
  std::vector<char> received_;  // from each other side
  std::array<char, 1> sent_{};
  std::vector<Transfer> receivers_, senders_;  // rank 0: one for each other rank; others: one, rank 0
  std::vector<bool> arrived_;
  bool stop_ = false, has_sent_ = false;
};

}  // namespace millrace
