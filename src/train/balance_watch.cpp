#include "balance_watch.h"

#include <cstdlib>
#include <utility>

namespace millrace {

std::optional<std::string> BalanceWatch::look(const Metrics& line) {
  const auto before = std::exchange(last_line_, line.elapsed_seconds);
  if (!before) return std::nullopt;  // with the first step, whose waits say nothing about the others
  const double seconds = line.elapsed_seconds - *before;
  sums_.add(balance_of(line), seconds);
  seconds_ += seconds;
  if (seconds_ < minute) return std::nullopt;
  Balance means;
  means.add(sums_, 1 / seconds_);
  sums_ = {};
  seconds_ = 0;
  const auto now = judge(means, roles_);
  if (!is_news(now)) return std::nullopt;
  told_ = now;
  return describe(means, roles_);
}

// Ten percent more ranks or fewer are none.
bool BalanceWatch::is_news(const Judgement& now) const {
  if (now.bottleneck != told_.bottleneck) return true;
  return now.bottleneck != Bottleneck::none && std::abs(now.producers - told_.producers) * 10 > told_.producers;
}

}  // namespace millrace
