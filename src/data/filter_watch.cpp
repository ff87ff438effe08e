#include "millrace/data/filter_watch.h"

#include "millrace/core/log.h"

namespace millrace {

void FilterWatch::count(Filter::Verdict verdict, std::string_view json) {
  constexpr std::uint64_t patience = 1000;
  if (kept_.load(std::memory_order_relaxed)) return;
  if (verdict == Filter::Verdict::keep) {
    kept_ = true;
    return;
  }
  const std::lock_guard lock(mutex_);
  if (dropped_ == 0) first_ = filter_.explain(json);
  if (++dropped_ == patience) warn(dropped_);
}

void FilterWatch::warn_now() {
  const std::lock_guard lock(mutex_);
  if (!kept_ && dropped_ > 0) warn(dropped_);
}

void FilterWatch::warn(std::uint64_t rows) {
  if (warned_) return;
  warned_ = true;
  log::warning("data.train.filters have kept none of the first {} rows. Of the first one: {}", rows, first_);
}

}  // namespace millrace
