#include "millrace/loader/filter_watch.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "millrace/core/log.h"

namespace millrace {

void FilterWatch::count(Filter::Verdict verdict, std::string_view json, std::uint64_t row_hash) {
  constexpr std::size_t patience = 1000, max_rows = 100'000;
  constexpr std::size_t max_seen = 3;
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
  for (std::size_t i = 0; i < look.missed.size(); ++i) {
    if (!look.missed[i]) continue;
    auto& [dropped, seen] = conditions_[i];
    ++dropped;
    if (seen.size() < max_seen && std::ranges::find(seen, *look.missed[i]) == seen.end())
      seen.push_back(std::move(*look.missed[i]));
  }
  if (rows_.size() == patience) log::warning("{}", describe_drops());
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
