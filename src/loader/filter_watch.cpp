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

// Rows are parsed once more, for the fields, from where it might come to a warning.
void FilterWatch::look_back(Filter::Verdict verdict, std::string_view json) {
  constexpr double many = 0.9, might_be_many = 0.8;
  constexpr std::uint64_t enough_before = 1000, enough_seen = 100;
  const bool is_dropped = verdict == Filter::Verdict::drop;
  const std::lock_guard lock(mutex_);
  if (has_warned_) return;
  const std::size_t place = judged_++ % window;
  dropped_before_ += last_.test(place);
  last_[place] = is_dropped;
  if (judged_ < window + enough_before) return;
  const double share = static_cast<double>(last_.count()) / window;
  const double before = static_cast<double>(dropped_before_) / static_cast<double>(judged_ - window);
  if (share <= might_be_many || before > might_be_many) {
    lately_.clear();
    return;
  }
  lately_.resize(filter_.size());
  if (is_dropped) add(lately_, filter_.look_at(json).missed);
  const auto most = std::ranges::max_element(lately_, {}, &Tally::dropped);
  const bool keeps_half_as_many = 2 * (1 - share) <= 1 - before;
  if (share <= many || !keeps_half_as_many || most->dropped < enough_seen) return;
  has_warned_ = true;
  log::warning("{}.filters have dropped {:.0f} % of the last {} rows, and {:.0f} % of those before: mostly {} (saw {})",
               filter_.section(), 100 * share, window, 100 * before,
               filter_.describe(static_cast<std::size_t>(most - lately_.begin())), fmt::join(most->seen, ", "));
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
