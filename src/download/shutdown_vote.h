#pragma once
#include <functional>
#include <vector>

#include "millrace/comm/group.h"

namespace millrace {

// Ranks work at their own pace for hours, yet a signal to one must reach all. Each rank sends rank 0 a notice: early
// when it was told to stop, else when it is through. Rank 0 answers each with one verdict: early when anybody stops,
// else when all are through. A second notice follows the first: that its rank was told to stop after all, while it
// waited for the verdict, else that the verdict is there. So nothing is under way when wait() returns.
class ShutdownVote {
 public:
  explicit ShutdownVote(const Group& group);

  // A look in passing: whether this rank must stop.
  bool must_stop();
  // This rank has ended. Waits for all others; true when any was told to stop. The same on all ranks, also where a
  // signal comes too late to be heard. On rank 0, while nobody was, again and again tell(how many are not through).
  using Tell = std::function<void(int)>;
  bool wait(const Tell& tell = {});

 private:
  bool collect_notices(const Tell& tell);
  bool wait_for_verdict();
  void look();
  bool have_all_sent(int messages) const;
  void send(bool stop);
  void finish_sends();

  const Group group_;
  const int expected_;          // messages from each other side: two notices, or the verdict
  std::vector<char> received_;  // from each other side
  char sent_ = 0;
  std::vector<Transfer> receivers_, senders_;  // rank 0: one for each other rank; others: one, rank 0
  std::vector<int> arrived_;                   // messages of each other side
  bool stop_ = false, has_sent_ = false;
};

}  // namespace millrace
