#include "first_sample_guard.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "millrace/core/error.h"

namespace millrace {

namespace {

// Where no more than this share of the archives is bad, so many of them are so by chance less than once in a billion
// times; all there are where these are fewer.
std::size_t count_enough_archives(const StripePlan& plan, double max_bad_share) {
  constexpr double negligible = 1e-9;
  std::set<std::uint32_t> all;
  for (const Split& split : plan.splits) all.insert(split.archive);
  if (max_bad_share >= 1) return all.size();  // nothing is judged
  const double enough = std::ceil(std::log(negligible) / std::log(max_bad_share));
  return std::clamp<std::size_t>(static_cast<std::size_t>(enough), 1, all.size());
}

}  // namespace

FirstSampleGuard::FirstSampleGuard(const StripePlan& plan, double max_bad_share)
    : max_bad_share_(max_bad_share),
      enough_telling_(telling_rows * static_cast<std::int64_t>(count_enough_archives(plan, max_bad_share))) {}

void FirstSampleGuard::add(std::uint32_t archive, int bad, int undecided) {
  Rows& rows = archives_[archive];
  telling_ -= rows.telling();
  rows.bad += bad;
  rows.undecided += undecided;
  undecided_ += undecided;
  telling_ += rows.telling();
}

void FirstSampleGuard::count_undecided(std::uint32_t archive) {
  if (!found_) add(archive, 0, 1);
}

void FirstSampleGuard::count_rejected(const Rejected& row) {
  if (found_) return;
  const auto bad_before = counts_.bad_rows();
  counts_.add(row.reason);
  if (counts_.bad_rows() == bad_before) return;
  add(row.ref.archive, 1, 0);
  if (example_.empty()) example_ = fmt::format("{}: {}", row.ref.id, row.detail);
}

void FirstSampleGuard::reject_undecided(const Rejected& row) {
  if (found_) return;
  add(row.ref.archive, 0, -1);
  count_rejected(row);
}

void FirstSampleGuard::judge(const FilterWatch* filters, const std::string& section) const {
  constexpr double judged_from = 10'000;
  if (found_ || telling_ < enough_telling_) return;
  const auto bad = static_cast<double>(counts_.bad_rows()), rows = static_cast<double>(counts_.rows());
  if (bad < judged_from || bad <= max_bad_share_ * (rows + static_cast<double>(undecided_))) return;
  const std::string drops = filters ? filters->report() : "";
  throw Error(
      Exit::bad_data,
      fmt::format("{}: none of the first {} rows, from {} archives, can be used: {}; the first is {}{}{}", section,
                  counts_.rows(), archives_.size(), main_reasons(counts_), example_, drops.empty() ? "" : "\n", drops),
      advice_on_unusable(counts_, section));
}

}  // namespace millrace
