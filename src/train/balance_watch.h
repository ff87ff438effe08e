#pragma once
#include <optional>
#include <string>

#include "millrace/train/balance.h"
#include "millrace/train/metrics.h"

namespace millrace {

// Says during a run who waits for whom: after the first minute, and again when another minute says something else.
class BalanceWatch {
 public:
  static constexpr double minute = 60;

  explicit BalanceWatch(RoleCounts roles) : roles_(roles) {}

  // Takes a line of metrics; returns what is worth telling now.
  std::optional<std::string> look(const Metrics& line);

 private:
  bool is_news(const Judgement& now) const;

  const RoleCounts roles_;
  std::optional<double> last_line_;  // seconds in training
  double seconds_ = 0;               // covered by `sums_`
  Balance sums_;                     // weighted by seconds
  Judgement told_;                   // nothing to tell, at first
};

}  // namespace millrace
