#include "millrace/loader/bad_share.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/core/secrets.h"

namespace millrace {

namespace {

bool exceeds(const RowCounts& counts, double max_share) {
  return static_cast<double>(counts.bad_rows()) > max_share * static_cast<double>(counts.rows());
}

// See NOTE [Judging bad rows].
bool exceeds_on_average(const RowTally& tally, double max_share) {
  constexpr std::size_t few = 8;
  if (tally.archives.size() <= few || max_share == 0) return true;
  double sum = 0, worst = 0;
  int others = -1;
  for (const RowCounts& counts : tally.archives) {
    if (counts.rows() == 0) continue;
    const double share = static_cast<double>(counts.bad_rows()) / static_cast<double>(counts.rows());
    sum += share;
    worst = std::max(worst, share);
    ++others;
  }
  return sum - worst > max_share * others;
}

std::string worst_archives(const RowTally& tally, const DataPlan& plan) {
  std::vector<std::uint32_t> order(tally.archives.size());
  std::iota(order.begin(), order.end(), 0u);
  const std::size_t shown = std::min<std::size_t>(3, order.size());
  std::partial_sort(order.begin(), order.begin() + shown, order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const auto bad_a = tally.archives[a].bad_rows(), bad_b = tally.archives[b].bad_rows();
    return bad_a != bad_b ? bad_a > bad_b : a < b;
  });
  std::string text;
  for (std::uint32_t archive : std::span(order).first(shown)) {
    const RowCounts& counts = tally.archives[archive];
    if (counts.bad_rows() == 0) break;
    text += fmt::format("\n  {}: {} of {} rows ({})", without_secrets(plan.manifest.archives[archive].path),
                        counts.bad_rows(), counts.rows(), main_reasons(bad_rows_of(counts)));
  }
  return text;
}

// `which`: "the last " of them, or empty for all.
[[noreturn]] void fail_bad_share(const RowTally& tally, const DataPlan& plan, const char* which,
                                 const std::string& limit) {
  const RowCounts& counts = tally.total;
  const auto advice = advice_on_columns(counts, "data.train");
  throw Error(Exit::bad_data,
              fmt::format("{} of {}{} rows are bad, more than {}: {}{}", counts.bad_rows(), which, counts.rows(), limit,
                          main_reasons(bad_rows_of(counts)), worst_archives(tally, plan)),
              advice.empty() ? "repair or leave out these archives, or raise data.max_bad_share"
                             : advice + "; else repair or leave out these archives, or raise data.max_bad_share");
}

// NOTE [Lost archives] One that breaks before any row of it is known counts as one bad row, whatever it was to hold. So
// archives are judged by their number as well, from 100 on, with room for chance (`share` is larger than max_share),
// and at the end of a pass from 10 on, where one alone ends none.
void fail_lost_archives(const RowTally& tally, const DataPlan& plan, double share, bool pass_ended) {
  constexpr std::size_t judged_from = 100, judged_at_end_from = 10, shown = 3;
  std::vector<std::string> lost;
  std::size_t seen = 0;
  for (std::size_t i = 0; i < tally.archives.size(); ++i) {
    const auto& counts = tally.archives[i];
    if (counts.rows() == 0) continue;
    ++seen;
    const auto broken = counts.rejected[static_cast<int>(RejectReason::archive_error)];
    if (broken == counts.rows()) lost.push_back(without_secrets(plan.manifest.archives[i].path));
  }
  if (seen < (pass_ended ? judged_at_end_from : judged_from) || lost.size() < 2) return;
  if (static_cast<double>(lost.size()) <= share * static_cast<double>(seen)) return;
  const auto some = std::span(lost).first(std::min(shown, lost.size()));
  throw Error(Exit::bad_data,
              fmt::format("{} of {} archives are broken before any row of theirs is known, more than {:.3g} of them "
                          "(data.max_bad_share): {}{}",
                          lost.size(), seen, share, fmt::join(some, ", "), some.size() < lost.size() ? ", ..." : ""),
              "`millrace inspect ARCHIVE` tells what is wrong with one; repair or leave them out, or raise "
              "data.max_bad_share");
}

}  // namespace

void check_bad_share(const Ledger& ledger, const DataPlan& plan, double max_share, bool pass_ended) {
  constexpr std::uint64_t judged_from = 100;
  const RowTally &all = ledger.distinct(), &recent = ledger.recent();
  if (pass_ended && all.total.accepted == 0)
    throw Error(
        Exit::bad_data,
        fmt::format("none of {} rows can be used: {}{}", all.total.rows(),
                    all.total.rows() ? main_reasons(all.total) : "the archives are empty", worst_archives(all, plan)),
        advice_on_unusable(all.total, "data.train"));
  const auto is_too_bad = [&](const RowTally& tally, double share) {
    return exceeds(tally.total, share) && (pass_ended || exceeds_on_average(tally, share));
  };
  const double recent_share = std::min(2 * max_share, (1 + max_share) / 2);
  fail_lost_archives(all, plan, pass_ended ? max_share : recent_share, pass_ended);
  if ((pass_ended || all.total.rows() >= judged_from) && is_too_bad(all, max_share))
    fail_bad_share(all, plan, "", fmt::format("data.max_bad_share = {}", max_share));
  if (recent.total.rows() >= Ledger::recent_from && is_too_bad(recent, recent_share))
    fail_bad_share(recent, plan, "the last ",
                   fmt::format("{:.3g} (up to twice data.max_bad_share = {}, as so few may be worse than all)",
                               recent_share, max_share));
}

}  // namespace millrace
