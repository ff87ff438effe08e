#include "balance_watch.h"

#include <cstdlib>
#include <utility>

namespace millrace {
namespace {

Balance scaled_sum(const Balance& sum, const Balance& b, double factor) {
  const StageShares &s = sum.stages, &t = b.stages;
  return {sum.images_per_second + factor * b.images_per_second,
          sum.trainers_wait + factor * b.trainers_wait,
          sum.encode_images_per_second + factor * b.encode_images_per_second,
          {s.read + factor * t.read, s.decode + factor * t.decode, s.transform + factor * t.transform,
           s.tokenize + factor * t.tokenize, s.encode + factor * t.encode, s.encode_wait + factor * t.encode_wait,
           s.send + factor * t.send, s.send_wait + factor * t.send_wait}};
}

}  // namespace

std::optional<std::string> BalanceWatch::look(const Metrics& line) {
  const auto before = std::exchange(last_line_, line.elapsed_seconds);
  if (!before) return std::nullopt;  // with the first step, whose waits say nothing about the others
  const double seconds = line.elapsed_seconds - *before;
  sums_ = scaled_sum(sums_, balance_of(line), seconds);
  seconds_ += seconds;
  if (seconds_ < minute) return std::nullopt;
  const Balance means = scaled_sum({}, sums_, 1 / seconds_);
  sums_ = {};
  seconds_ = 0;
  const auto now = judge(means, crew_);
  if (!is_news(now)) return std::nullopt;
  told_ = now;
  return describe(means, crew_);
}

// Ten percent more ranks or fewer are none.
bool BalanceWatch::is_news(const Judgement& now) const {
  if (now.bottleneck != told_.bottleneck) return true;
  return now.bottleneck != Bottleneck::none && std::abs(now.producers - told_.producers) * 10 > told_.producers;
}

}  // namespace millrace
