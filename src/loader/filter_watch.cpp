#include "millrace/loader/filter_watch.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "millrace/core/log.h"

namespace millrace {

void FilterWatch::count(Filter::Verdict verdict, std::string_view json, std::uint64_t row_hash) {
  constexpr std::size_t patience = 1000, max_rows = 100'000;
  look_back(verdict, json);
  if (kept_.load(std::memory_order_relaxed)) return;
  if (verdict == Filter::Verdict::keep) {
    kept_ = true;
    return;
  }
  Filter::Look look;
  if (verdict == Filter::Verdict::drop) look = filter_.look_at(json);
  const std::lock_guard lock(mutex_);
  if (rows_.size() == max_rows || !rows_.insert(row_hash).second) return;
  without_json_ += verdict == Filter::Verdict::bad_json;
  if (keys_.empty()) keys_ = std::move(look.keys);
  add(conditions_, std::move(look.missed));
  if (rows_.size() == patience) log::warning("{}", describe_drops());
}

void FilterWatch::add(std::vector<Tally>& tallies, std::vector<std::optional<std::string>> missed) {
  constexpr std::size_t max_seen = 3;
  for (std::size_t i = 0; i < missed.size(); ++i) {
    if (!missed[i]) continue;
    auto& [dropped, seen] = tallies[i];
    ++dropped;
    if (seen.size() < max_seen && std::ranges::find(seen, *missed[i]) == seen.end())
      seen.push_back(std::move(*missed[i]));
  }
}

void FilterWatch::look_back(Filter::Verdict verdict, std::string_view json) {
  constexpr std::uint64_t enough_seen = 100;
  if (has_warned_.load(std::memory_order_relaxed)) return;
  const bool is_dropped = verdict == Filter::Verdict::drop;
  const std::lock_guard lock(mutex_);
  if (lately_.empty()) {
    dropped_ += is_dropped;
    if (++judged_ % window == 0) judge_window();
    return;
  }
  if (!is_dropped || has_warned_) return;
  add(lately_, filter_.look_at(json).missed);
  const auto most = std::ranges::max_element(lately_, {}, &Tally::dropped);
  if (most->dropped < enough_seen) return;
  has_warned_ = true;
  log::warning("{}.filters have dropped {:.0f} % of {} rows, and {:.0f} % of those before: mostly {} (saw {})",
               filter_.section(), 100 * share_, window, 100 * share_before_,
               filter_.describe(static_cast<std::size_t>(most - lately_.begin())), fmt::join(most->seen, ", "));
}

// Of a window that stands out the next rows are looked at, for the field that is to blame.
void FilterWatch::judge_window() {
  constexpr double many = 0.9, usual = 0.8;
  const auto before = judged_ - window;
  share_ = static_cast<double>(dropped_ - dropped_before_) / window;
  share_before_ = before == 0 ? 1 : static_cast<double>(dropped_before_) / static_cast<double>(before);
  dropped_before_ = dropped_;
  const bool keeps_half_as_many = 2 * (1 - share_) <= 1 - share_before_;
  if (share_ > many && share_before_ <= usual && keeps_half_as_many) lately_.resize(filter_.size());
}

std::string FilterWatch::report() const {
  const std::lock_guard lock(mutex_);
  return kept_ || rows_.empty() ? "" : describe_drops();
}

std::string FilterWatch::describe_drops() const {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < conditions_.size(); ++i) {
    const auto& [dropped, seen] = conditions_[i];
    parts.push_back(fmt::format("{} dropped {}", filter_.describe(i), dropped));
    if (!seen.empty()) parts.back() += fmt::format(" (saw {})", fmt::join(seen, ", "));
  }
  if (without_json_) parts.push_back(fmt::format("{} rows had no metadata, or broken ones", without_json_));
  if (!keys_.empty()) parts.push_back("keys of the first row: " + keys_);
  return fmt::format("{}.filters have kept none of the first {} rows{}: {}", filter_.section(), rows_.size(),
                     conditions_.size() > 1 ? ", each filter counted by itself" : "", fmt::join(parts, "; "));
}

}  // namespace millrace
